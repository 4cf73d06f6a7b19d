// Package judge judges full resyncs that have ended: it compares the members with all stored objects, and stores what
// is absent and the outcome. Package ingest decides, package postgres reads and stores.
//
// One replica judges at a time. It compares in a transaction that reads one snapshot and locks nothing, and stores the
// result in short transactions that lock the agent. The resyncs to judge are in the database, so the next replica
// continues after a crash. A resync is open until it is judged completely. [ingest.EndedResync] says why the result
// does not depend on the time of the judgement.
package judge
