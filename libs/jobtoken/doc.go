// Package jobtoken makes and verifies the tokens of running jobs: "glcbt-" and a JWT, signed with Ed25519 (RFC 8037).
//
// The runners service of a cell signs ([Sign]) and publishes its public keys as a [KeySet], a JSON Web Key Set. A token
// names its job, the project, the organization and the cell, its scopes and a random id. Only EdDSA is accepted, with
// the key that the token names, and only a key of the cell that the token names: no cell can make a token of another.
//
// Two checks differ in what they promise. [Verifier.Authentic] proves who made the token, whatever the time: a router
// finds the cell of an expired token, and the cell refuses it. [Verifier.Verify] also checks the validity. Neither
// knows whether the job has ended: the runners service also compares the hash of the token with its job.
//
// A key must be in the key set of every verifier before the first token is signed with it, and remain there until the
// last token has expired.
//
// Work is bounded: a token has at most [MaxLength] bytes, and one signature is checked. Errors never quote the token.
package jobtoken
