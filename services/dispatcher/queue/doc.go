// Package queue schedules work by key.
//
// It keeps only the newest version per key and drops lower or equal ones. A key has at most one
// running task; a version that arrives meanwhile is due afterwards. So the versions of a key run in
// order.
//
// New work runs before retries, and retries use a bounded number of workers: a thousand failing
// keys do not delay a healthy one. Each key has its own pauses, and a new version ends them.
//
// Settled tasks can be repeated ([Queue.Repair]), each key once per round. Repairs run after new
// work and due retries, with a bounded concurrency and a pause between two starts.
//
// Nothing is persisted. After a restart the owner puts all work again. All methods are safe for
// concurrent use.
package queue
