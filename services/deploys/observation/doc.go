// Package observation decodes messages of the stream OBSERVED: what watchers report about workloads.
//
// [Decoder.Decode] returns an [Observation] per message. It rejects malformed messages and messages that an agent
// published under the subject or source of another agent. For messages of other kinds it returns the zero Observation.
//
// The generated decoders validate the data. This package also checks names, versions, times and sizes, so that every
// accepted value fits into the database and into a fact. Package ingest processes the observations. Decoding is pure:
// equal messages give equal observations.
package observation
