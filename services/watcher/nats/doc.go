// Package nats publishes the watcher's events to JetStream.
//
// [Publisher.Publish] does not wait for the acknowledgement. A lost connection fails all messages in
// flight; the publisher does not retry. Messages have no message id, so a retry stores the event again,
// with the same event id.
package nats
