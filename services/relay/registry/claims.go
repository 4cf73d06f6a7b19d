package registry

import (
	"maps"
	"slices"
	"time"
)

// Bucket is one life of the bucket: NATS may lose it, and it is made anew.
type Bucket struct {
	// Created is when that was, and Seen when this relay has found it there, both by the clock of NATS.
	Created, Seen time.Time
}

// forgets says whether other relays may have told that everything is lost which this one has not written into the bucket: they wait for as long as a lease.
func (b Bucket) forgets(lease time.Duration) bool { return b.Seen.Sub(b.Created) >= lease }

// Claims is what one relay holds, and what it knows the bucket to have of that. It is made by [NewClaims], and not for several goroutines at a time.
//
// It decides what has to be told again. Other relays tell that a connection is lost, and remove its entry after that, when they believe its relay to be dead; which is a mistake where that one was
// frozen, or parted from NATS. So it is told again that a connection is there whenever its entry is not what this relay has written, or the bucket was lost and this relay came too late to
// write it again. It is then another time that it is there: see [Connection.Revived].
type Claims struct {
	held    map[string]*claim
	changed map[string]struct{}
	bucket  Bucket
}

type claim struct {
	Connection

	// revision of what was written last; 0 where that is nothing.
	revision uint64
	// again is that it is to be told that it is there.
	again bool
}

func (c *claim) revive() {
	c.revision, c.again = 0, true
	c.Revived++
}

// NewClaims claims nothing.
func NewClaims() *Claims {
	return &Claims{held: map[string]*claim{}, changed: map[string]struct{}{}}
}

// Hold claims a connection.
func (c *Claims) Hold(x Connection) {
	c.held[x.Key()] = &claim{Connection: x}
	c.changed[x.Key()] = struct{}{}
}

// Drop gives a connection back, as it was claimed.
func (c *Claims) Drop(key string) (Connection, bool) {
	was, held := c.held[key]
	if !held {
		return Connection{}, false
	}
	delete(c.held, key)
	c.changed[key] = struct{}{}
	return was.Connection, true
}

// Keys of all that is held, in order.
func (c *Claims) Keys() []string { return slices.Sorted(maps.Keys(c.held)) }

// Begin has everything written once more, into a bucket that may be another one than before.
func (c *Claims) Begin(b Bucket, lease time.Duration) {
	another := !b.Created.Equal(c.bucket.Created)
	c.bucket = b
	for key, claim := range c.held {
		c.changed[key] = struct{}{}
		switch {
		case !another || claim.revision == 0: // others knew nothing of it that they could have told
		case b.forgets(lease):
			claim.revive()
		default:
			claim.revision = 0
		}
	}
}

// Removed takes that an entry is not there any more since this revision of the bucket. It says whether the entry is claimed, and so to be written again.
func (c *Claims) Removed(key string, revision uint64) bool {
	claim, held := c.held[key]
	if held && revision > claim.revision { // what was removed before the last writing is there again
		c.changed[key] = struct{}{}
	}
	return held
}

// Change is an entry to be written or to be removed.
type Change struct {
	Key string
	// Connection that the entry is to have; nil where it is to go.
	Connection *Connection
	// Revision that the entry has to have before, if nobody else has removed it; 0 where that does not matter.
	Revision uint64
}

// Changes are all that are to be made, in the order of their keys.
func (c *Claims) Changes() []Change {
	changes := make([]Change, 0, len(c.changed))
	for _, key := range slices.Sorted(maps.Keys(c.changed)) {
		change := Change{Key: key}
		if claim, held := c.held[key]; held {
			x := claim.Connection
			change.Connection, change.Revision = &x, claim.revision
		}
		changes = append(changes, change)
	}
	return changes
}

// Made takes that a change was made, as this revision of its entry.
func (c *Claims) Made(change Change, revision uint64) {
	claim, held := c.held[change.Key]
	if held == (change.Connection != nil) { // else it has changed meanwhile
		delete(c.changed, change.Key)
	}
	if held {
		claim.revision = revision
	}
}

// Mistaken takes that an entry did not have the revision that this relay has written: it was taken for lost. It is to be written in any case now.
func (c *Claims) Mistaken(change Change) {
	if claim, held := c.held[change.Key]; held {
		claim.revive()
	}
}

// Again calls told for each connection of which it is to be told again that it is there, once its entry says so, too; until told returns that it is told.
func (c *Claims) Again(told func(Connection) bool) {
	for _, key := range c.Keys() {
		claim := c.held[key]
		if _, changed := c.changed[key]; claim.again && !changed {
			claim.again = !told(claim.Connection)
		}
	}
}
