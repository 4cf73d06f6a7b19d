// Package postgres stores controllers, the admission of jobs, and what is to be asked. Each change of a job is stored
// with its events for the stream ADMISSION in one transaction, if the job has not changed meanwhile.
package postgres
