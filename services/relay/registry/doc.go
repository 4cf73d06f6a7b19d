// Package registry maps agent replicas to the relays that hold their connections. Its content depends only on the
// entries of a key-value bucket; package nats reads and writes the bucket.
//
// There are two kinds of entries. A relay has one lease, which expires unless it is refreshed. A connection has
// one entry with its relay's id. It is valid only while that relay has a lease. So all connections of a killed
// relay end with its lease, and a refresh costs one message per relay. The order of entries does not matter.
//
// [OwnEntries] are the entries that this relay writes. They also decide which connections to republish after
// another relay reported them lost by mistake.
package registry
