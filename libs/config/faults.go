package config

import (
	"fmt"
	"slices"
	"strings"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// Fault is one thing wrong with the configuration.
type Fault struct {
	Key     string // path in the file; "" when the fault belongs to no setting
	Env     string // environment variable of the key
	Flag    string // flag of the key, without dashes
	Origin  string // where the value comes from: "default", config.yaml:3, LOCKSTEP_NATS_URL, --nats-url
	Message string
}

func (f Fault) String() string {
	var text strings.Builder
	if f.Key != "" {
		text.WriteString(f.Key)
		if f.Env != "" {
			fmt.Fprintf(&text, " (%s, --%s)", f.Env, f.Flag)
		}
		text.WriteString(": ")
	}
	text.WriteString(f.Message)
	if f.Origin != "" && f.Origin != "default" {
		fmt.Fprintf(&text, " [%s]", f.Origin)
	}
	return text.String()
}

// Faults is everything wrong with the configuration.
type Faults []Fault //nolint:errname // what it is

func (f Faults) Error() string {
	lines := make([]string, 0, len(f)+1)
	if len(f) == 1 {
		lines = append(lines, "the configuration has a fault:")
	} else {
		lines = append(lines, fmt.Sprintf("the configuration has %d faults:", len(f)))
	}
	for _, fault := range f {
		lines = append(lines, "  "+fault.String())
	}
	return strings.Join(lines, "\n")
}

// Fault is invalid_argument with the text of Error.
func (f Faults) Fault() *fault.Error { return fault.New(errcode.InvalidArgument, "%s", f.Error()) }

// with appends a fault unless the same is there: a Validate method promoted from an inline struct
// runs for both.
func (f Faults) with(fault Fault) Faults {
	if slices.Contains(f, fault) {
		return f
	}
	return append(f, fault)
}

func (f Faults) has(key string) bool {
	for _, fault := range f {
		if fault.Key == key {
			return true
		}
	}
	return false
}

func (f *Field) fault(message string) Fault {
	return Fault{Key: f.Key, Env: f.Env, Flag: f.Flag, Origin: f.origin, Message: message}
}
