// Package personaltoken finds the user of a personal access token, for requests of GitLab's API, which have no other
// token of a user.
//
// An [Authenticator] exchanges the token at the state service for an access token of this service, verifies that, and
// remembers the result until the access token expires: at most five minutes. A user who is blocked, or whose token is
// revoked, is refused as soon as the directory of this service knows it. Only hashes of tokens are remembered.
//
// A flood of invented tokens does not delay users: texts without the right checksum are refused at once, a few unknown
// tokens are exchanged at a time, and tokens that were valid before do not wait for them.
package personaltoken
