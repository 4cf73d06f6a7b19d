// Package access is how a service knows who calls it, without asking anybody: by access tokens.
//
// State makes one for the owner of a personal access token ([Sign]): a JWT signed with Ed25519 that
// names its issuer, the services that may accept it, the user, and whether the user is an
// administrator. It lives for five minutes. A service accepts it ([Verifier]) when the signature is
// by a key that is on the stream DIRECTORY, for which it keeps its own copy (package directory),
// and the user is there, neither deleted nor blocked. An administrator is one who was so when the
// token was made and is so now.
//
// [Verifier.Interceptor] is for Connect and gRPC, [Verifier.Handler] for plain HTTP. A stream of
// answers lives longer than the token that began it: it is cut at once when the user is blocked or
// deleted, and after an hour in any case, with the code unavailable, so that its client begins it
// again with a token of then.
//
// Errors are faults: unauthenticated for a token that is missing, malformed, forged, over, or meant
// for somebody else; permission_denied for a user who is blocked; unavailable while the directory
// has not been read. They say what is wrong and never quote the token.
//
// Nothing here compares a secret: a signature is verified with a public key, which is found by its
// public id.
package access
