// Package signingkey plans the rotation of Ed25519 keys that sign tokens, and seals private keys for storage. It does
// no I/O.
//
// A [Schedule] has the times: a new key is created at an interval, waits until every verifier knows it before it signs,
// and stays until the last token that it signed has expired. [Schedule.Plan] returns what is due, [Schedule.Current]
// the key to sign with. Both depend on the stored keys and the time only, so all replicas come to the same result.
package signingkey
