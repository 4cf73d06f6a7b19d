// Package postgres is what the state service keeps: the directory, workspaces with their sealed secrets, and what their clusters say.
//
// Every change is told in the transaction that makes it, through the outbox. Rows are locked in one order: clusters, observed objects, workspaces by their
// ids; whoever locks otherwise can be made to wait for itself. Errors that callers shall see are faults; everything else says what was
// being done.
package postgres
