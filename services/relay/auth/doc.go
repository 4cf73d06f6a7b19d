// Package auth says who calls a relay: a service that shares a secret with it, or another relay.
//
// Both come with a JWT that is signed with a shared secret (HMAC with SHA-2), names its issuer and the relay as its audience, and ends. A [Verifier] checks all of that: an
// algorithm of another kind, a missing end, a token from the future are refused. Clocks may differ by at most five seconds. Of two secrets either is accepted, so that one can take
// the place of the other while both sides are running.
//
// Errors are faults with the code unauthenticated. They say what is wrong and never quote the token.
package auth
