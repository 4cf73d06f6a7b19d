// Package rebuild recreates the table of jobs from the stream JOBS.
//
// A rebuild reads the stream into a shadow table while jobs change. It then blocks changes, waits until the outbox has
// published what there is, reads the remaining events, compares the tables and replaces the live one. It publishes
// nothing. If it fails, nothing changes. Jobs whose events the stream has dropped stay as they are.
package rebuild
