// Package publish encodes the transitions of jobs as events for the stream JOBS, and reads jobs from them. It is pure.
package publish
