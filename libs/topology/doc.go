// Package topology is the one place that says which streams exist and how subjects are spelled.
//
// Subjects are lockstep.<cell>.<family>.<key…>; a [Cell] builds them and [Parse] takes them apart.
// Key tokens are ids or names; names are escaped by [Escape], so that no name can add a token, a
// wildcard or a control character.
//
// [Streams] declares each stream whole: what it captures, how long it keeps it, how large it and a
// message may grow. [Ensure] brings a server to that declaration. Every declaration carries
// [Version] in its metadata, and only a higher one changes a stream that is there: an old replica
// cannot revert what a newer one has set. Streams are never deleted here. A version may give a
// stream a smaller share: the oldest of what it has beyond that goes.
//
// Retention is by limits everywhere: a work queue would destroy what replay needs.
package topology
