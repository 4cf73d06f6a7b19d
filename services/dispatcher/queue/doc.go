// Package queue holds what is to be done for each key, and nothing twice.
//
// Per key only the newest version is kept; a lower or equal one is dropped, whether it waits, is being worked on or is done. A key is
// never taken twice at once: what comes while it is worked on is due as soon as that is over. A key's versions are taken in order.
//
// Work that is new goes before work that is tried again, and work that is tried again occupies a bounded number of workers: a
// thousand keys that fail never keep a healthy one waiting. Each key has its own pauses ([Backoff]); a new version ends them.
//
// What is settled can be gone through again ([Queue.Repair]), each key once for all that ask meanwhile: behind fresh work and due retries, a bounded number
// at once, and with a pause between two, so that nobody waits for it.
//
// Nothing is persisted: after a restart the source of the work is read again. All methods are safe for concurrent use.
package queue
