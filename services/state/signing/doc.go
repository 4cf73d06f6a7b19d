// Package signing makes, rotates and uses the keys that access tokens are signed with.
//
// A key lives for two days, and a new one is made every day, so that two are valid at a time: tokens of the older one are accepted until they are over. A new key does
// not sign for its first ten minutes, in which everybody hears of it, unless there is no other. None signs a token that would outlive it.
//
// Private keys are in the database, sealed with the service's own key; public ones are told on DIRECTORY in the transaction that stores them. Replicas share the keys. A
// [Keyring] looks for them every minute; while the database is away it signs with those it has.
package signing
