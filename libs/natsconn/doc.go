// Package natsconn is how a service is connected to NATS: once, for as long as it lives.
//
// Connect succeeds although NATS is down and comes back from every outage, with back-off from 0.1 s
// to 5 s. Refused credentials are retried too, with the files read again, since a rotation or an
// administrator may heal them; Check says meanwhile what is wrong. Connect fails for configuration
// that cannot work.
//
// While there is no connection a publish fails at once (nats.ErrReconnectBufExceeded; before the
// first connection nats.ErrHeadersNotSupported for one with headers): it is never kept and sent
// behind the back of a caller who has been told of a time-out. Subscriptions are restored.
//
// NATS answers a denied publish with nothing at all: the caller sees a time-out. Violations are
// therefore kept, logged, counted and shown (PermissionDenied, Check, the metrics). Shutdown
// drains: what was received is handled and what was published is sent before the connection closes.
package natsconn
