package events

import (
	"embed"
	"slices"
	"strings"
)

// Prefix begins the name of every event type of Lockstep's own.
const Prefix = "dev.lockstep."

// schemaBase is where the schemas are published.
const schemaBase = "https://lockstep.dev/schemas/events/"

// schemaSuffix of the files in the folder schemas.
const schemaSuffix = ".schema.json"

//go:embed schemas/*.schema.json
var schemas embed.FS

// Type is one event type.
type Type struct {
	// Name is the CloudEvents type, such as dev.lockstep.observed.tick.v1.
	Name string
	// Title of the schema, which is also the name of the Go type of the data.
	Title string
	// Description for people.
	Description string
	// Stream that keeps it, such as OBSERVED.
	Stream string
	// Subject it rides on below lockstep.<cell>., with parameters in braces: observed.{agent}.tick.
	Subject string
}

// Lookup returns the type of a name, and whether there is one.
func Lookup(name string) (Type, bool) {
	types := Types()
	at := slices.IndexFunc(types, func(t Type) bool { return t.Name == name })
	if at < 0 {
		return Type{}, false
	}
	return types[at], true
}

// Schema is the type's JSON Schema as it is published; nil for a type that is not of the registry.
func (t Type) Schema() []byte {
	raw, err := schemas.ReadFile("schemas/" + strings.TrimPrefix(t.Name, Prefix) + schemaSuffix)
	if err != nil {
		return nil
	}
	return raw
}
