package events

import "slices"

// Prefix begins the name of every event type that Lockstep defines.
const Prefix = "dev.lockstep."

// Type is one event type.
type Type struct {
	// Name is the CloudEvents type, such as dev.lockstep.observed.tick.v1.
	Name string
	// Title is the title of the schema and the name of the Go type of the data.
	Title string
	// Description of the event, for people.
	Description string
	// Stream that stores it, such as OBSERVED.
	Stream string
	// Subjects below lockstep.<cell>., with parameters in braces: observed.{agent}.tick. At least one.
	Subjects []string
}

// Lookup returns the type with a name, and whether it exists.
func Lookup(name string) (Type, bool) {
	types := Types()
	at := slices.IndexFunc(types, func(t Type) bool { return t.Name == name })
	if at < 0 {
		return Type{}, false
	}
	return types[at], true
}
