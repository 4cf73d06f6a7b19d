// Package golden makes sure that every event that was ever released can still be read.
//
// [Faults] validates events on disk against schemas on disk, for the check before anything is
// generated. The package's tests go on from there with what is generated: the registry's Validate,
// the Go types, and NATS and back.
package golden
