// Package failure describes why a workspace could not be applied: a machine-readable reason, and a message for the
// user that names who rejected what and what to do.
//
// [Explain] converts errors of the API server into failures. No other code interprets them. It is pure and total:
// every error has a reason and a message of bounded length. Messages of the API server about a Secret are omitted,
// because they may contain values.
package failure
