// Package event carries CloudEvents 1.0 over NATS and into files.
//
// Between services an event travels in binary mode as the CloudEvents NATS protocol binding says:
// each attribute is a header ce-<name>, percent-encoded, and the data is the payload ([Encode],
// [Decode]). Exports and people's tools get the structured JSON form ([MarshalStructured]). Decode
// understands both, told apart by the Content-Type header.
//
// An event round-trips unchanged except for what no binding keeps: extension values become their
// canonical strings. What is malformed is refused with a sentence that names the attribute; nothing
// is guessed.
//
// Every event that Lockstep writes is made by [New]: a type of the registry in schemas, JSON data,
// time in UTC cut to milliseconds, and an id its writer derives from what the event says, so that
// writing it twice gives the same event.
package event
