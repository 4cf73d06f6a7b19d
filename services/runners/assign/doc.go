// Package assign gives pending jobs to runners that ask for one. An [Assigner] is the queue of the HTTP contract.
//
// Each replica has the pending jobs of the cell in memory (package queue), loaded at the start and kept by
// notifications. A request takes the next job for its runner from there; if there is none, it waits, without any query.
// Whatever makes a job pending wakes the request that has waited longest among those whose runner takes the job.
//
// A job that was taken from memory is claimed in PostgreSQL, by compare-and-set on its revision: of several replicas
// that take a job, one gets it, and the others continue with the next one. Claims that meet are stored in one
// transaction.
//
// A claim whose request has ended meanwhile is released at once. One whose answer was lost is released when no request
// confirms it; see package execution.
package assign
