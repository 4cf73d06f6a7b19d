// Package natsconn connects a service to NATS for its whole lifetime.
//
// Connect succeeds while NATS is down, and the connection returns after every outage, with back-off
// from 0.1 s to 5 s. Refused credentials are retried too, with the files read again; Check reports
// the reason meanwhile. Connect fails for an invalid configuration.
//
// A publish without a connection fails at once (nats.ErrReconnectBufExceeded; before the first
// connection nats.ErrHeadersNotSupported for a message with headers). It is never buffered and sent
// later. Subscriptions are restored.
//
// NATS does not answer a denied publish: the caller sees a timeout. Violations are therefore
// logged, counted and reported (PermissionDenied, Check, the metrics). Shutdown drains: received
// messages are handled and published ones sent before the connection closes.
package natsconn
