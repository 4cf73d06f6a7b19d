package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// Problem is one error in the configuration.
type Problem struct {
	Key     string // path in the file; "" when the problem concerns no setting
	Env     string // environment variable of the key
	Flag    string // flag of the key, without dashes
	Origin  string // source of the value: "default", config.yaml:3, LOCKSTEP_NATS_URL, --nats-url
	Message string
}

func (f Problem) String() string {
	text := f.Message
	switch {
	case f.Env != "":
		text = fmt.Sprintf("%s (%s, --%s): %s", f.Key, f.Env, f.Flag, text)
	case f.Key != "":
		text = f.Key + ": " + text
	}
	if f.Origin != "" && f.Origin != "default" {
		text += " [" + f.Origin + "]"
	}
	return text
}

func (f *Field) problem(message string) Problem {
	return Problem{Key: f.Key, Env: f.Env, Flag: f.Flag, Origin: f.origin, Message: message}
}

// Problems is every error in the configuration.
type Problems []Problem //nolint:errname // a list

func (f Problems) Error() string {
	count := "1 problem"
	if len(f) != 1 {
		count = fmt.Sprintf("%d problems", len(f))
	}
	lines := []string{"the configuration has " + count + ":"}
	for _, problem := range f {
		lines = append(lines, "  "+problem.String())
	}
	return strings.Join(lines, "\n")
}

// Fault returns an invalid_argument error with the text of Error.
func (f Problems) Fault() *fault.Error { return fault.New(errcode.InvalidArgument, "%s", f.Error()) }

func (f Problems) err() error {
	if len(f) == 0 {
		return nil
	}
	return f
}

// Validator is a struct or the type of a field that checks its values. Validate returns every
// problem; use Invalid to name the setting.
type Validator interface {
	Validate() []error
}

type invalid struct{ key, message string }

func (i *invalid) Error() string {
	if i.key == "" {
		return i.message
	}
	return i.key + ": " + i.message
}

// Invalid returns a problem of a setting. The key is relative to the struct of the Validate method:
// "url", "tls.cert_file". The message names what to write instead.
func Invalid(key, format string, args ...any) error {
	return &invalid{key: key, message: fmt.Sprintf(format, args...)}
}

// Validate calls the Validate methods of the struct, its parts and its fields, and checks the tags
// `oneof`. The error is Problems. Load calls it.
func (b *Binding) Validate() error { return b.validate(nil).err() }

// validate adds to known problems. A setting with a known problem gets no second one.
func (b *Binding) validate(problems Problems) Problems {
	known := map[string]bool{"": false}
	for _, f := range problems {
		known[f.Key] = f.Key != ""
	}
	report := func(prefix string, err error) {
		// The Validate method of an inline struct is promoted and runs twice.
		if f := b.problemOf(prefix, err); !known[f.Key] && !slices.Contains(problems, f) {
			problems = append(problems, f)
		}
	}
	for _, f := range b.fields {
		text := format(f.value)
		isUnset := text == "" && f.Default == ""
		if len(f.OneOf) > 0 && !isUnset && !slices.Contains(f.OneOf, text) {
			report(f.Key, Invalid("", "%q is not one of %s", text, strings.Join(f.OneOf, ", ")))
		}
		for _, err := range validate(f.value.Addr().Interface()) {
			report(f.Key, err)
		}
	}
	for _, s := range b.sections {
		for _, err := range validate(s.value.Addr().Interface()) {
			report(s.key, err)
		}
	}
	return problems
}

func validate(value any) []error {
	validator, ok := value.(Validator)
	if !ok {
		return nil
	}
	return slices.DeleteFunc(validator.Validate(), func(err error) bool { return err == nil })
}

func (b *Binding) problemOf(prefix string, err error) Problem {
	key, message := prefix, err.Error()
	if i, ok := errors.AsType[*invalid](err); ok {
		key, message = join(prefix, i.key), i.message
	}
	if f, ok := b.byKey[key]; ok {
		return f.problem(message)
	}
	return Problem{Key: key, Message: message}
}
