// Package compat detects incompatible changes between released and current event schemas.
//
// Streams keep released events for months, so new readers must accept them; and old readers receive
// new events. [Check] refuses a change that breaks either: a removed type, field or value; another
// type, format or default of a field; a field that becomes required or optional; a tightened
// constraint; a removed subject. It follows references, so a definition may move or change its name.
//
// Check accepts a new type, a new optional field, a further subject, another description and a
// loosened constraint.
// Readers that validate are upgraded before writers (the control plane before the agents).
//
// A new value of an enum is refused, because old readers have no branch for it. A list that may
// grow is x-lockstep-known-values instead; every reader expects unknown values there.
//
// Check supports the keywords that the catalog allows, and never panics.
package compat
