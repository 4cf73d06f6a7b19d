// Package nats is how the state service hears of clusters and lets agents in: it reads what watchers observe and dispatchers apply into the
// database, answers requests for sealed secrets, and tells NATS which agent may do what.
//
// Each stream is read by one replica at a time, in order, and its position moves in the transaction that stores what was read: what a message
// says happens once. A message that is malformed, mislabelled or another agent's is put aside on DEAD with its reason and holds up nobody.
//
// # Rebuilding
//
// [Rebuild] makes what is derived from the streams anew with the code that keeps it, in temporary tables beside the real ones ([postgres.Shadow]). It reads the
// streams from their first messages up to where the live readers are, holds those for the moment that the rest takes, compares row by row, and puts in place what
// differs in one transaction. Nobody is told of it and nothing goes to DEAD. People wait only for the comparison, readers for that and the rest; canceled
// or killed, it changes nothing.
//
// Derived, and so compared and mended, are: objects, full resyncs, orphans, the clusters and clocks of agents; and of workspaces the actual state with its reason,
// message and next deadline, what was applied last, the error of applying, and how far a termination is. What is wanted is not, nor what counts what was told:
// revisions, the times of changes, when an orphan was seen first, what an operator asked for.
//
// "Identical" is to hold because each derived column is a function of the messages in their order and of what is wanted now: where a batch ends, which stream was ahead,
// when somebody wished for something, and which states were passed through make no difference. A workspace's state follows from what is stored about it, whatever
// it was before. Exceptions, each of which a rebuild keeps as it is stored:
//
//   - A workspace that is terminated stays so, with all its row says, though the streams may have forgotten why.
//   - What the streams have forgotten: rows that were last told of before the first message that a stream still has, or of which it has older news only that came
//     late; memberships in resyncs before that; terminations under way that were asked for before; and the numbers of epochs, of which only the order counts.
//     Once a stream was put back from an older copy, also tombstones and resyncs that it lacks; the rest is mended by the full resyncs that are asked for then,
//     so that "identical" holds from their ends on.
//   - When and on which occasion an object's version was observed first, which its data says: the first who told it may be forgotten.
//   - Orphans whose deletion was asked for, and those that are left of a terminated workspace, of which two streams tell.
//   - The state of a workspace that is due to be computed at its agent's next tick, because something was wished for, or its
//     agent configured. That tick mends it, if need be: it computes the state from what is stored, whatever it was.
//
// A message about an agent or a workspace that did not exist when it was first read, and does now, counts in a rebuild, as it does when it is retried from DEAD.
package nats
