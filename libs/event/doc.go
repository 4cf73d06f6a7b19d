// Package event encodes CloudEvents 1.0 for NATS and for files.
//
// Services exchange events in binary mode of the CloudEvents NATS protocol binding: each attribute
// is a percent-encoded header ce-<name>, and the data is the payload ([Encode], [Decode]). Exports
// and tools use structured JSON ([MarshalStructured]). Decode accepts both, by the Content-Type
// header.
//
// An event round-trips unchanged, except that extension values become their canonical strings. A
// malformed message is an error that names the attribute.
//
// [New] creates every event of Lockstep: a type of the registry in schemas, JSON data, time in UTC
// with milliseconds, and the id that the writer gives.
package event
