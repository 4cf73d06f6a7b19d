// Package registry knows which relay holds a connection of which replica of an agent. It is a pure function of the
// entries of a key-value bucket; the package nats reads and writes the bucket.
//
// There are two kinds of entries. A relay has one lease, which expires unless it is refreshed. A connection has one
// entry, which names its relay and counts only while that relay has a lease. So all connections of a killed relay
// end with its lease, and a refresh costs one message per relay. The order of entries does not matter.
//
// [OwnEntries] are what this relay writes. They decide which connections it publishes again after other relays took
// it for dead by mistake.
package registry
