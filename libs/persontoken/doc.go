// Package persontoken makes and verifies the tokens with which a gateway acts for a person at the state service of its
// cell: JWTs, signed with Ed25519 (RFC 8037), that are valid for at most [MaxLifetime].
//
// A token names the person and its [Scope]s. Each scope permits few methods of the state service, so that a stolen
// token, or a gateway that somebody took over, cannot do more. Only EdDSA is accepted, only for the cell that the token
// names, and only with a key that the state service is configured with. A verifier keeps no memory of tokens: one that
// is not expired may be used again.
//
// Work is bounded: a token has at most [MaxLength] bytes, and one signature is checked. Errors never quote the token.
package persontoken
