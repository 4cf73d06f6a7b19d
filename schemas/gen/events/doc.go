// Package events is what Lockstep's events say: a Go type for the data of every event type, and the registry of the types.
//
// The source of truth are the JSON Schemas in schemas/events; the types, the registry and the embedded schemas are generated from them.
// A type's Go struct has the schema's title for its name, and its constant is Type with that title: the data of [TypeObservedTick] is [ObservedTick].
//
// Decoding tolerates what it does not know, so that an event may gain fields. What comes from outside is checked with [Validate] first:
// Go's JSON takes an event that lacks a required field for one that has it empty. Write lists that are required as empty, never as nil:
// nil travels as null, which Validate refuses.
//
// A string type whose schema lists x-lockstep-known-values may gain values within a version, and Validate lets any value of it pass: treat one that you
// do not know as "some other". Every other enumeration is closed.
package events
