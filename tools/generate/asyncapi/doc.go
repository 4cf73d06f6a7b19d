// Package asyncapi writes the AsyncAPI 3.0 document of everything that may be read from Lockstep's
// streams.
//
// A channel is one subject of one stream, with the event types that ride on it; operations are
// those of a reader. It is made of the topology and the catalog alone, so it cannot say anything
// else than the code does. The same input gives the same bytes.
package asyncapi
