// Package nats is how the state service hears of clusters and lets agents in: it reads what watchers observe and dispatchers apply into the
// database, answers requests for sealed secrets, and tells NATS which agent may do what.
//
// Each stream is read by one replica at a time, in order, and its position moves in the transaction that stores what was read: what a message
// says happens once. A message that is malformed, mislabelled or another agent's is put aside on DEAD with its reason and holds up nobody.
package nats
