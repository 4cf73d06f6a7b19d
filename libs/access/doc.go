// Package access identifies the caller of a request by an access token, without calling another
// service.
//
// State signs a token for the owner of a personal access token ([Sign]): an Ed25519 JWT with the
// issuer, the services that may accept it, the user, and whether the user is an administrator. It
// is valid for five minutes. A [Verifier] accepts it when a key of the directory has signed it and
// the user is neither deleted nor blocked. An administrator must be one in the token and in the
// directory.
//
// [Verifier.Handler] authenticates a request by its headers, before its body is read. Handlers of
// Connect and gRPC also have [Verifier.Interceptor]. A stream may outlive its token. It ends when
// the user is blocked or deleted, and after an hour, with the code unavailable, so that the client
// reconnects with a new token.
//
// Errors are faults: unauthenticated for a missing, malformed, forged or expired token, or one for another service
// or cell; permission_denied for a blocked user; unavailable before the directory is ready. They never quote the
// token.
//
// No secret is compared: a signature is verified with a public key, found by its public id.
package access
