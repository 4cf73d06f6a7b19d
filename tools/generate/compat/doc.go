// Package compat says whether today's event schemas break those who use the released ones.
//
// An event lives on both sides of a change. Events of the released schemas stay on their streams
// for months and must still mean the same to a new consumer; new events reach consumers that were
// built from the released schemas. [Check] refuses what either of them would trip over: a type,
// field or value that is gone; a field that has another type, format or default; a field that is
// newly required, or no longer; a tightened constraint; a type that moved to another subject. It
// follows references, and compares what they lead to, so that a definition may move or get another
// name.
//
// It accepts a new type, a new optional field, another description, and a constraint that is
// loosened: consumers decode values, and those that validate are upgraded before the writers (the
// control plane before the agents).
//
// A new value of an enum is refused, since consumers decide by it and have no branch for it. Where
// values are expected to grow the schema lists them as x-lockstep-known-values instead of enum;
// there a new one is accepted, because every consumer had to expect it.
//
// Check knows the keywords that the catalog allows, and never panics whatever the documents hold.
package compat
