// Package observation decodes messages of the stream OBSERVED: what watchers report about workloads.
//
// [Decoder.Decode] returns an [Observation] per message. It rejects malformed messages and messages that an agent
// published under the subject or source of another agent. Messages about other things are irrelevant.
//
// The generated decoders validate the data. This package checks names, versions, times and sizes in addition, so that
// every accepted value fits into the database and into a fact. Package ingest decides what an observation means. Decoding is pure: equal messages give equal observations.
package observation
