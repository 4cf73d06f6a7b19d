// Package endpoint serves controllers: callbacks with a later answer, and what they may read about a job.
//
// A callback needs the one-time token of its request. Its body is an answer, as in a response. A malformed answer is
// refused and uses up nothing. The token is the idempotency key: a second use is a conflict, and so is none after the
// round has ended, which is gone.
//
// The read token of a request is good for this job only, and until the round of the controller ends.
package endpoint
