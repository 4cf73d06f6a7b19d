// Package postgres loads and stores: the directory, workspaces with their sealed secrets, and the reports of
// their clusters. It decides nothing; package publish makes the messages that it puts into the outbox.
//
// Every change and its messages are one transaction. Transactions lock in this order: agents, observed
// objects, workspaces by id. Another order can deadlock. Errors for the API's callers are faults.
package postgres
