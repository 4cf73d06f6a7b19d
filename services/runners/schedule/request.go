package schedule

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"unicode"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/cifile"
	"lockstep.internal/services/runners/job"
)

// Request asks for a pipeline.
type Request struct {
	ProjectID, OrganizationID int64
	// ProjectPath is the full path of the project for variables. Defaults to project-<id>.
	ProjectPath string
	// UserID is the caller.
	UserID int64
	// Source is how the pipeline is created, such as api.
	Source string
	// Ref is the name of a branch. Optional.
	Ref       string
	Protected bool
	// File is the content of the .gitlab-ci.yml, and FileName its name for messages.
	File     []byte
	FileName string
	// Variables of all jobs.
	Variables []job.Variable
	// ID of the request. A repeated request returns the pipeline of the first one. Optional.
	ID string
}

// Limits of pipelines. A zero field means the value of [DefaultLimits].
type Limits struct {
	// File are the limits of a file and its jobs.
	File cifile.Limits
	// Unfinished is the maximum number of pipelines of a project that have not ended.
	Unfinished int
	// Variables is the maximum number of variables of a request, and Value the maximum size of one, in bytes.
	Variables, Value int
}

// DefaultLimits returns the limits that the service uses.
func DefaultLimits() Limits {
	return Limits{File: cifile.DefaultLimits(), Unfinished: 500, Variables: 100, Value: 64 << 10}
}

func (l Limits) withDefaults() Limits {
	d := DefaultLimits()
	for _, f := range []struct{ field, value *int }{
		{&l.Unfinished, &d.Unfinished}, {&l.Variables, &d.Variables}, {&l.Value, &d.Value},
	} {
		if *f.field == 0 {
			*f.field = *f.value
		}
	}
	return l // package cifile has the defaults for File
}

const (
	maxRef, maxFileName, maxRequestID, maxKey = 255, 255, 64, 255
	// minMasked is the minimum size of a masked value: shorter ones occur in every trace by chance.
	minMasked = 8
)

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// validate returns the first problem of a request as a fault.
func (r Request) validate(limits Limits) error {
	for _, text := range []struct {
		field, value string
		maximum      int
	}{{"ref", r.Ref, maxRef}, {"file_name", r.FileName, maxFileName}, {"request_id", r.ID, maxRequestID}} {
		if len(text.value) > text.maximum {
			return invalid(text.field, "has %d bytes: at most %d are allowed", len(text.value), text.maximum)
		}
		if strings.ContainsFunc(text.value, unicode.IsControl) {
			return invalid(text.field, "has a control character: remove it")
		}
	}
	if len(r.Variables) > limits.Variables {
		return invalid("variables", "has %d entries: at most %d are allowed", len(r.Variables), limits.Variables)
	}
	known := make(map[string]bool, len(r.Variables))
	for _, v := range r.Variables {
		if err := validateVariable(v, limits); err != nil {
			return err
		}
		if known[v.Key] {
			return invalid("variables", "has %q twice: give each variable once", v.Key)
		}
		known[v.Key] = true
	}
	return nil
}

// validateVariable checks a variable. Its messages never have the value.
func validateVariable(v job.Variable, limits Limits) error {
	switch {
	case len(v.Key) > maxKey || !variableName.MatchString(v.Key):
		return invalid("variables", "has the key %q: use 1 to %d letters of ASCII, digits and _, and no digit first",
			v.Key[:min(len(v.Key), maxKey)], maxKey)
	case len(v.Value) > limits.Value:
		return invalid("variables", "has %d bytes for %s: at most %d are allowed", len(v.Value), v.Key, limits.Value)
	case strings.ContainsRune(v.Value, 0):
		return invalid("variables", "has a zero byte in the value of %s: remove it", v.Key)
	case v.Masked && len(v.Value) < minMasked:
		return invalid("variables", "has a masked value with less than %d bytes for %s: a masked value must be longer, "+
			"since short ones occur by chance", minMasked, v.Key)
	}
	return nil
}

func invalid(field, format string, arguments ...any) error {
	return fault.New(errcode.InvalidArgument, "%s %s", field, fmt.Sprintf(format, arguments...)).With("field", field)
}

// key identifies the request. Requests that ask for the same have the same hash. The source and the path of the project
// may change between two attempts of a caller.
func (r Request) key() (RequestKey, error) {
	k := RequestKey{ProjectID: r.ProjectID, UserID: r.UserID, ID: r.ID}
	content, err := json.Marshal(struct {
		Ref       string         `json:"ref"`
		Protected bool           `json:"protected"`
		File      []byte         `json:"file"`
		FileName  string         `json:"file_name"`
		Variables []job.Variable `json:"variables"`
	}{r.Ref, r.Protected, r.File, r.FileName, r.Variables})
	if err != nil {
		return k, fmt.Errorf("encode a request: %w", err)
	}
	k.Hash = sha256.Sum256(content)
	return k, nil
}
