package seal

import (
	"fmt"
	"log/slog"
)

const placeholder = "[secret]"

// Value is one secret value. Printed, logged or encoded it is "[secret]"; comparing with == is not
// constant-time.
type Value struct {
	text string
}

// NewValue returns a Value that holds the text.
func NewValue(text string) Value { return Value{text} }

// Reveal returns the text. Never log or print it.
func (v Value) Reveal() string { return v.text }

// String hides the value.
func (v Value) String() string { return placeholder }

// GoString hides the value from %#v.
func (v Value) GoString() string { return placeholder }

// Format hides the value from every verb.
func (v Value) Format(state fmt.State, _ rune) {
	_, _ = state.Write([]byte(placeholder))
}

// LogValue hides the value from slog.
func (v Value) LogValue() slog.Value { return slog.StringValue(placeholder) }

// MarshalJSON hides the value. There is no UnmarshalJSON: the encoding is not reversible on purpose.
func (v Value) MarshalJSON() ([]byte, error) { return []byte(`"` + placeholder + `"`), nil }

// MarshalText hides the value from encoders of text, YAML and XML.
func (v Value) MarshalText() ([]byte, error) { return []byte(placeholder), nil }

// Values maps names to secret values. Nil equals empty.
type Values map[string]Value
