// Package history checks what a Lockstep system has published, and its effects. Each check is a
// pure function over records: messages of streams, answers of the API, rows of the database,
// objects of the cluster. It returns a sentence for each fault, in the order of the records, and
// nothing if there is none. A check holds whatever was killed, restarted or disconnected meanwhile,
// unless its comment excepts a case. The checks know the events and nothing of the services. Each
// has a test that shows how it fails.
package history
