// Package deliver asks the web servers of controllers about jobs.
//
// What is to be asked is a row of the database. A replica takes due rows by leases, at most as many of a controller as
// its concurrency allows, and records each request before it sends it. A replica that is killed leaves rows whose
// leases end: another one repeats what has no recorded answer, as the same attempt with the same webhook-id.
//
// Each controller has a lane of its own with a concurrency, a rate and a circuit breaker, so a slow one delays its own
// jobs only. An open breaker sends nothing; its jobs wait until their time has passed.
package deliver
