package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Validator is implemented by configuration structs, and by the types of fields, that have rules. It
// returns everything that is wrong; use Invalid to name the setting.
type Validator interface {
	Validate() []error
}

// invalid is a fault of a setting named relative to the struct that found it.
type invalid struct {
	key     string
	message string
}

func (i *invalid) Error() string {
	if i.key == "" {
		return i.message
	}
	return i.key + ": " + i.message
}

// Invalid says what is wrong with a setting and what to write instead. The key is relative to the
// struct whose Validate method returns it: "url", "tls.cert_file".
func Invalid(key, format string, args ...any) error {
	return &invalid{key: key, message: fmt.Sprintf(format, args...)}
}

// Validate returns what the struct, its parts and its settings say is wrong, nil when all is well. Load
// calls it; programs that fill the struct themselves may.
func (b *Binding) Validate() error {
	if faults := b.validate(nil); len(faults) > 0 {
		return faults
	}
	return nil
}

// validate adds to what is known already; a setting that has a fault gets no second one.
func (b *Binding) validate(faults Faults) Faults {
	known := slices.Clone(faults)
	report := func(prefix string, err error) {
		fault := b.faultOf(prefix, err)
		if fault.Key == "" || !known.has(fault.Key) {
			faults = faults.with(fault)
		}
	}
	for _, f := range b.fields {
		text := format(f.value)
		unset := text == "" && f.Default == ""
		if len(f.OneOf) > 0 && !unset && !slices.Contains(f.OneOf, text) {
			report(f.Key, fmt.Errorf("%q is none of %s", text, strings.Join(f.OneOf, ", "))) //nolint:err113 // becomes a Fault
		}
		for _, err := range errorsOf(f.value.Addr().Interface()) {
			report(f.Key, err)
		}
	}
	for _, s := range b.sections {
		for _, err := range errorsOf(s.value.Addr().Interface()) {
			report(s.key, err)
		}
	}
	return faults
}

func errorsOf(value any) []error {
	validator, ok := value.(Validator)
	if !ok {
		return nil
	}
	return slices.DeleteFunc(validator.Validate(), func(err error) bool { return err == nil })
}

func (b *Binding) faultOf(prefix string, err error) Fault {
	key, message := prefix, err.Error()
	if i, ok := errors.AsType[*invalid](err); ok {
		key, message = join(prefix, i.key), i.message
	}
	if f, ok := b.byKey[key]; ok {
		return f.fault(message)
	}
	return Fault{Key: key, Message: message}
}
