// Package gotypes generates package events in schemas/gen from the event schemas: Go types,
// decoders that validate, and the registry of event types.
//
// A [Model] holds every Go type that the schemas define. An object becomes a struct, a string with
// a closed or growing list of values becomes a string type with constants. A definition is named by
// its key, an event's data by its title, and a list of values inside a property by that property.
// Types and decoders come from the same model, so they always agree.
package gotypes
