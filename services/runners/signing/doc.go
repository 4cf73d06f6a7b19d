// Package signing creates, rotates and uses the keys that sign the tokens of running jobs.
//
// A job may run for [MaxTokenLifetime], and its token must be verifiable for that long. So a key signs for three days
// and is kept for a month more; a cell has about a dozen keys, fewer than [jobtoken.MaxKeys]. A new key begins to sign
// ten minutes after its creation, when all replicas and routers have it, unless there is no other. Replicas share the
// keys.
//
// The database stores private keys sealed with the key of the service. A [Keyring] signs and verifies from memory. It
// reads the keys every minute, and at once when a token names a key that it does not know.
//
// Public keys are published in the map of cells ([Keyring.Entry]) and as a JSON Web Key Set ([Keyring.Handler]).
package signing
