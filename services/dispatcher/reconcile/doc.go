// Package reconcile applies desired states to the cluster and publishes the results.
//
// [Reconciler.Receive] checks a message and queues it. [Reconciler.Run] takes tasks from the queue and applies, repairs
// or terminates one workspace per task. It publishes a failure and retries the task with back-off.
//
// [DecodeAndCheck] and [Results] are pure. The first decides whether a desired state may be applied, the second creates
// the result events.
package reconcile
