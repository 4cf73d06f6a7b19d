package registry

import (
	"maps"
	"slices"
	"time"
)

// Bucket identifies one instance of the KV bucket. NATS may lose it; the state service recreates it.
type Bucket struct {
	// Created is when the bucket was made, and Seen is when this relay opened it; both are NATS server times.
	Created, Seen time.Time
}

// olderThanLease reports whether the bucket existed for a lease before this relay saw it. Then other relays may
// have reported missing connections as lost.
func (b Bucket) olderThanLease(lease time.Duration) bool { return b.Seen.Sub(b.Created) >= lease }

// OwnEntries tracks this relay's connections and the revisions of their entries in the bucket. It is not safe
// for concurrent use.
//
// It decides which connections are published again. If this relay stalls, another relay may consider it dead. The
// other relay then publishes this relay's connections as lost and removes their entries. So a connection is
// published again when its entry is not what this relay wrote, or when the bucket was recreated and this relay
// rewrote its entries too late. [Connection.Republished] then counts up.
type OwnEntries struct {
	held    map[string]*ownEntry
	pending map[string]struct{}
	bucket  Bucket
}

type ownEntry struct {
	Connection

	// revision that this relay wrote last; 0 if none.
	revision uint64
	// republish reports whether the connected event must be published again.
	republish bool
}

func (e *ownEntry) markForRepublish() {
	e.revision, e.republish = 0, true
	e.Republished++
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

// Reset marks all entries for writing after a reconnect. The bucket may have been recreated.
func (o *OwnEntries) Reset(b Bucket, lease time.Duration) {
	recreated := !b.Created.Equal(o.bucket.Created)
	o.bucket = b
	for key, e := range o.held {
		o.pending[key] = struct{}{}
		switch {
		case !recreated: // a conflict shows whether another relay removed the entry
		case e.revision == 0: // its entry was never written
		case b.olderThanLease(lease):
			e.markForRepublish()
		default:
			e.revision = 0
		}
	}
}

// EntryRemoved handles the removal of an entry. It reports whether this relay holds the connection, so that the entry
// has to be written again. That write fails, because the revision has changed, and
// [OwnEntries.Conflict] schedules the republish.
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
	if held == (change.Connection != nil) { // otherwise the connection was added or removed during the write
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
		e.markForRepublish()
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
