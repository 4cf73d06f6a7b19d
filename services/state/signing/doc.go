// Package signing creates, rotates and uses the keys that sign access tokens.
//
// A key is valid for two days, and a new one is created every day, so two keys overlap. A new key starts to
// sign after ten minutes, when every service knows it, unless there is no other. No key signs a token that
// outlives it. Replicas share the keys.
//
// The database stores private keys sealed with the service's key. Public keys are published on DIRECTORY in
// the transaction that stores them. While the database is away a [Keyring] signs with the keys that it has.
package signing
