// Package topology declares the streams and the names of subjects.
//
// Subjects are lockstep.<cell>.<family>.<key…>. A [Cell] builds them and [Parse] splits them. Key
// tokens are ids or names; [Escape] escapes names, so that a name cannot add a token, a wildcard or
// a control character.
//
// [Streams] declares each stream completely: subjects, retention, sizes. [Ensure] creates and updates them on a
// server. Every declaration carries [Version] in its metadata, and only a higher version changes a stream, so an
// old replica cannot revert a newer one. Only the number of replicas is a setting that an equal version changes, too.
// Streams are never deleted. Reducing a stream's share drops its oldest messages.
//
// Retention is by limits everywhere: work-queue retention would delete messages that a replay needs.
package topology
