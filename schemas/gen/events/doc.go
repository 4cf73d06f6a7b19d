// Package events holds the Go types of the data of Lockstep's events, their decoders, and the
// registry of event types.
//
// The JSON Schemas in schemas/events define the events; types, decoders and registry are generated
// from them. A Go type is named by the title of its schema, and its constant is Type with that
// title: the data of [TypeObservedTick] is [ObservedTick].
//
// [Decode] reads an event and validates it. Do not use encoding/json for that: it reads an absent
// field as zero. Write a required list as an empty one, never as nil: nil becomes null, which
// Decode refuses. Decode ignores unknown fields, because an event type may gain fields within a
// version.
//
// A string type with x-lockstep-known-values in its schema may gain values within a version, and
// Decode accepts any: treat an unknown one as "some other". Every other list of values is closed.
package events
