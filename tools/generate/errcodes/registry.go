package errcodes

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

type registry struct {
	About  string  `json:"about"`
	Errors []entry `json:"errors"`
}

type entry struct {
	Code        string `json:"code"`
	HTTP        int    `json:"http"`
	Connect     string `json:"connect"`
	Exit        int    `json:"exit"`
	Description string `json:"description"`
}

var snakeCase = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)

// connectCodes are the codes of the Connect and gRPC protocols without ok.
func connectCodes() []string {
	return []string{
		"canceled", "unknown", "invalid_argument", "deadline_exceeded", "not_found", "already_exists",
		"permission_denied", "resource_exhausted", "failed_precondition", "aborted", "out_of_range",
		"unimplemented", "internal", "unavailable", "data_loss", "unauthenticated",
	}
}

// parse reads the registry and returns every broken rule at once.
func parse(raw []byte) (registry, error) {
	var r registry
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&r); err != nil {
		return registry{}, fmt.Errorf("decode: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return registry{}, errors.New("something follows the registry")
	}
	var faults []error
	if len(r.Errors) == 0 {
		faults = append(faults, errors.New("no codes"))
	}
	codes, names, exits := map[string]bool{}, map[string]bool{}, map[int]string{}
	for _, e := range r.Errors {
		faults = append(faults, e.faults()...)
		if codes[e.Code] || names[goName(e.Code)] {
			faults = append(faults, fmt.Errorf("%s: registered twice", e.Code))
		}
		if other, taken := exits[e.Exit]; taken {
			faults = append(faults, fmt.Errorf("%s: exit %d belongs to %s", e.Code, e.Exit, other))
		}
		codes[e.Code], names[goName(e.Code)], exits[e.Exit] = true, true, e.Code
	}
	if err := errors.Join(faults...); err != nil {
		return registry{}, err
	}
	return r, nil
}

func (e entry) faults() []error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("%s: "+format, append([]any{e.Code}, args...)...))
	}
	if !snakeCase.MatchString(e.Code) {
		fault("a code is snake_case")
	}
	if e.HTTP < 400 || e.HTTP > 599 {
		fault("http %d is not an error status", e.HTTP)
	}
	if !slices.Contains(connectCodes(), e.Connect) {
		fault("connect %q is none of %s", e.Connect, strings.Join(connectCodes(), ", "))
	}
	// 126 to 128 and everything above belong to the shell; 130 is what an interrupted program
	// returns.
	if (e.Exit < 1 || e.Exit > 125) && e.Exit != 130 {
		fault("exit %d is not in 1 … 125 and not 130", e.Exit)
	}
	if !strings.HasSuffix(e.Description, ".") || strings.ContainsAny(e.Description, "\n\r\"`") {
		fault("the description is one sentence on one line that ends with a period")
	}
	return faults
}

// goName turns workspace_terminated into WorkspaceTerminated.
func goName(code string) string {
	var name strings.Builder
	for word := range strings.SplitSeq(code, "_") {
		if word == "" {
			continue
		}
		name.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return name.String()
}
