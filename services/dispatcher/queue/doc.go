// Package queue schedules work by key.
//
// The queue keeps the newest version per key and drops the others. A key has at most one running task; a version
// that arrives meanwhile is due afterwards. So the versions of a key run in order.
//
// New work runs before retries, and retries use a bounded number of workers: a thousand failing keys do not delay a
// healthy one. Each key has its own backoff. A new version resets it.
//
// A task that succeeded is completed: the queue keeps its item. [Queue.Repair] repeats all completed tasks, each key
// once. Repairs run after new work and due retries, with a bounded concurrency and a pause between two starts.
//
// Nothing is persisted. After a restart the caller must put all items again. All methods are safe for concurrent use.
package queue
