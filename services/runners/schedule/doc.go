// Package schedule creates pipelines and applies what package pipeline decides about their jobs, in transactions.
//
// A transaction locks the row of the pipeline first, and then jobs in the order of their ids. Everything that follows
// from a change is in its transaction: new attempts, jobs that begin or are skipped, the state of the pipeline, and all
// events. So a pipeline is never left between two of its states, and no job is forgotten.
//
// Whoever ends a job calls [Scheduler.LockOfJob], stores the end, and calls [Scheduler.Ended] with it, all in one
// transaction. Users create, cancel and retry through the other methods. [Scheduler.RunDelayed] lets jobs begin that
// were retried with a delay; it may run on several replicas.
package schedule
