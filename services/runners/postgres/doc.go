// Package postgres stores what the runners service owns: runners, pipelines, jobs, claims, traces and artifacts. It
// decides nothing.
//
// A transaction that changes jobs of a pipeline so that others of it follow locks the row of the pipeline first, and
// then jobs in the order of their ids. [StoreChanges] stores a job only if it has the revision before the change: two
// transactions never store two transitions from one state.
package postgres
