// Package postgres is the PostgreSQL adapter: the directory, workspaces with their sealed secrets, and the observed
// objects. It loads and stores, also messages of the outbox. It decides nothing and publishes nothing: package outbox
// publishes after the commit.
//
// Transactions lock in this order: settings of the cell, agents, observed objects, orphans, workspaces by id; moves,
// tokens, users, organizations. Another order can deadlock.
// Errors for the API's callers are faults.
package postgres
