package payload

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Job is what a controller receives about a job.
type Job struct {
	ID int64
	// Variables are the predefined variables.
	Variables map[string]Value
	// Tags that a runner must have.
	Tags []string
}

// Encode returns the request about a job. Equal jobs have equal bytes.
func Encode(j Job) []byte {
	var b bytes.Buffer
	b.WriteString(`[{"id":`)
	b.WriteString(strconv.FormatInt(j.ID, 10))
	b.WriteString(`,"variables":{`)
	for i, name := range slices.Sorted(maps.Keys(j.Variables)) {
		separate(&b, i)
		b.Write(quote(name))
		b.WriteByte(':')
		b.Write(j.Variables[name].token())
	}
	b.WriteString(`},"tags":`)
	writeTexts(&b, j.Tags)
	b.WriteString(`}]`)
	return b.Bytes()
}

func separate(b *bytes.Buffer, i int) {
	if i > 0 {
		b.WriteByte(',')
	}
}

func writeTexts(b *bytes.Buffer, texts []string) {
	b.WriteByte('[')
	for i, text := range texts {
		separate(b, i)
		b.Write(quote(text))
	}
	b.WriteByte(']')
}

// quote returns a text in JSON. Bytes that are not UTF-8 become U+FFFD.
func quote(text string) []byte {
	quoted, err := jsontext.AppendQuote(nil, strings.ToValidUTF8(text, "\ufffd"))
	if err != nil { // valid UTF-8 can be quoted
		panic(err)
	}
	return quoted
}

// DecodeJob decodes a request.
func DecodeJob(document []byte) (Job, error) {
	job, err := decodeJob(document)
	if err != nil {
		return Job{}, fmt.Errorf("the job is not a payload of admission: %w", err)
	}
	return job, nil
}

func decodeJob(document []byte) (Job, error) {
	if len(document) > MaxBytes {
		return Job{}, fmt.Errorf("it has more than %d bytes", MaxBytes)
	}
	fields, err := single(document)
	if err != nil {
		return Job{}, err
	}
	id, err := fields.id()
	if err != nil {
		return Job{}, err
	}
	if id < 1 {
		return Job{}, wrong(CodeWrongType, "id must be the id of a job, not %d", id)
	}
	job := Job{ID: id, Variables: map[string]Value{}}
	if raw, ok := fields["variables"]; ok {
		if job.Variables, err = decodeVariables(raw); err != nil {
			return Job{}, err
		}
	}
	job.Tags, err = fields.tags("tags", "tags")
	return job, err
}

func decodeVariables(raw jsontext.Value) (map[string]Value, error) {
	members, err := object("variables", raw)
	if err != nil {
		return nil, err
	}
	if len(members) > MaxVariables {
		return nil, wrong(CodeTooMany, "variables has %d entries: at most %d are allowed", len(members), MaxVariables)
	}
	out := make(map[string]Value, len(members))
	for name, value := range members {
		switch value.Kind() {
		case jsontext.KindString:
			out[name] = Text(text(value))
		case jsontext.KindNumber:
			out[name] = Value{text: string(value), number: true}
		default:
			return nil, wrong(CodeWrongType, "variables: %s must be a text or a number, not %s", shorten(name), kind(value))
		}
	}
	return out, nil
}
