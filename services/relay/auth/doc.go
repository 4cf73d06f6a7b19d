// Package auth verifies and signs the JWTs of services and of other relays.
//
// Both send a JWT that is signed with a shared secret (HMAC-SHA2) and has an issuer, an audience and an expiry.
// A [Verifier] checks all of that: it rejects other algorithms, tokens without an expiry, and tokens issued in
// the future. Clocks may differ by at most five seconds. Either of two secrets is accepted, so that secrets can
// be rotated without downtime.
//
// Errors are faults with the code unauthenticated. They explain the reason and never contain the token.
package auth
