// Package queue is the pending jobs of a cell in memory. It is pure, and not safe for concurrent use.
//
// [Queue.Put] takes a job as it is stored: pending jobs wait, running ones count for the fairness between projects, and
// ended ones are forgotten. A job with a lower revision than the known one changes nothing. [Queue.Take] removes the
// job that a runner gets next: of the projects with a job for it, the one with the fewest running jobs, then the job
// that has waited longest.
//
// Jobs with the same tags and protection are a class. Take looks at each class, and in a matching one at each project,
// but only at the oldest job of each: its cost does not depend on the number of jobs.
package queue
