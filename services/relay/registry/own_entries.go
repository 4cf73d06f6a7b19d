package registry

import (
	"maps"
	"slices"
	"time"
)

// Bucket is one incarnation of the bucket: NATS may lose it, and the state service makes it again.
type Bucket struct {
	// Created is when the bucket was made, and Seen when this relay found it, both by the clock of NATS.
	Created, Seen time.Time
}

// olderThanLease reports whether other relays may have published that connections are lost which are not in the
// bucket: they wait for one lease.
func (b Bucket) olderThanLease(lease time.Duration) bool { return b.Seen.Sub(b.Created) >= lease }

// OwnEntries are the connections that this relay holds, and what the bucket has of them. It is not safe for
// concurrent use.
//
// It decides which connections are published again. If another relay takes this one for dead by mistake, because it
// was frozen or cut off from NATS, it publishes that the connections are lost, and then removes their entries. So a
// connection is published again when its entry is not what this relay wrote, or when the bucket was lost and this
// relay came too late to write it again. [Connection.Revived] then counts up.
type OwnEntries struct {
	held    map[string]*ownEntry
	pending map[string]struct{}
	bucket  Bucket
}

type ownEntry struct {
	Connection

	// revision that this relay wrote last; 0 if none.
	revision uint64
	// republish is that the connection has to be published again.
	republish bool
}

func (e *ownEntry) revive() {
	e.revision, e.republish = 0, true
	e.Revived++
}

// NewOwnEntries has no entries.
func NewOwnEntries() *OwnEntries {
	return &OwnEntries{held: map[string]*ownEntry{}, pending: map[string]struct{}{}}
}

// Add adds a connection.
func (o *OwnEntries) Add(c Connection) {
	o.held[c.Key()] = &ownEntry{Connection: c}
	o.pending[c.Key()] = struct{}{}
}

// Remove removes a connection, and returns it as it was published last.
func (o *OwnEntries) Remove(key string) (Connection, bool) {
	e, held := o.held[key]
	if !held {
		return Connection{}, false
	}
	delete(o.held, key)
	o.pending[key] = struct{}{}
	return e.Connection, true
}

// Keys of all connections, sorted.
func (o *OwnEntries) Keys() []string { return slices.Sorted(maps.Keys(o.held)) }

// Reset makes every entry pending, for a bucket that may be another one than before.
func (o *OwnEntries) Reset(b Bucket, lease time.Duration) {
	another := !b.Created.Equal(o.bucket.Created)
	o.bucket = b
	for key, e := range o.held {
		o.pending[key] = struct{}{}
		switch {
		case !another || e.revision == 0: // no other relay knew of it
		case b.olderThanLease(lease):
			e.revive()
		default:
			e.revision = 0
		}
	}
}

// EntryRemoved handles the removal of an entry. It reports whether this relay holds the connection, so that the entry
// has to be written again.
func (o *OwnEntries) EntryRemoved(key string, revision uint64) bool {
	e, held := o.held[key]
	if held && revision > e.revision { // an older removal was overwritten already
		o.pending[key] = struct{}{}
	}
	return held
}

// Change is an entry to write or to remove.
type Change struct {
	Key string
	// Connection to write; nil to remove the entry.
	Connection *Connection
	// Revision that the entry must have; 0 for any.
	Revision uint64
}

// Pending changes, sorted by key.
func (o *OwnEntries) Pending() []Change {
	changes := make([]Change, 0, len(o.pending))
	for _, key := range slices.Sorted(maps.Keys(o.pending)) {
		change := Change{Key: key}
		if e, held := o.held[key]; held {
			c := e.Connection
			change.Connection, change.Revision = &c, e.revision
		}
		changes = append(changes, change)
	}
	return changes
}

// Written records that a change was written with a revision.
func (o *OwnEntries) Written(change Change, revision uint64) {
	e, held := o.held[change.Key]
	if held == (change.Connection != nil) { // otherwise it has changed meanwhile
		delete(o.pending, change.Key)
	}
	if held {
		e.revision = revision
	}
}

// Conflict records that an entry did not have the revision that this relay wrote: another relay removed it. The
// next change overwrites any revision.
func (o *OwnEntries) Conflict(change Change) {
	if e, held := o.held[change.Key]; held {
		e.revive()
	}
}

// Republish calls publish with each connection that has to be published again and whose entry is written. publish
// returns false to be called again later.
func (o *OwnEntries) Republish(publish func(Connection) bool) {
	for _, key := range o.Keys() {
		e := o.held[key]
		if _, pending := o.pending[key]; e.republish && !pending {
			e.republish = !publish(e.Connection)
		}
	}
}
