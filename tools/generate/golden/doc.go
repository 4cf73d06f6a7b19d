// Package golden checks that every released event can still be decoded.
//
// [Faults] validates events on disk with a schema library, before anything is generated. The tests
// of the package do the same with the generated decoders, and send the events through NATS.
package golden
