// Package postgres is the PostgreSQL adapter: the directory, workspaces with their sealed secrets, and the observed
// objects. It loads and stores. It decides nothing and publishes nothing: the caller puts messages into the outbox, in
// the same transaction.
//
// Transactions lock in this order: agents, observed objects, workspaces by id. Another order can deadlock. Errors for
// the API's callers are faults.
package postgres
