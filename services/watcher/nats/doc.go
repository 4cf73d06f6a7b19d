// Package nats publishes the watcher's events to JetStream and reads the agent's configuration and
// requests.
//
// [Publisher.Publish] does not wait for the acknowledgement. A lost connection fails all messages in
// flight; the publisher does not retry. Messages have no message id, so a retry stores the event again,
// with the same event id.
//
// [Control.Run] reads the agent's consumer on CONTROL from its start: the last configuration, the last
// request and what follows. It acknowledges a message when it has taken effect. If the process ends
// before, the next leader receives it again. An invalid message is terminated and logged: agents may not
// publish to DEAD.
package nats
