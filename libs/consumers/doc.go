// Package consumers creates JetStream consumers. The state service creates its own directly, with [Direct]. It also
// creates those of other services, which ask for them with [Requested]: whoever creates a consumer names where its
// messages go, so nobody else may.
package consumers
