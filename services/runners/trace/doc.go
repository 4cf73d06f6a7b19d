// Package trace holds the rules for the output of a job, which its runner appends while the job runs. It is pure.
//
// The runner sends bytes with their offset. [State.Append] accepts only what continues the trace; for anything else it
// returns a [*RangeError] with the size at which the runner continues. [State.Finish] compares the size and the CRC-32
// (IEEE) that the runner reports at the end with what was received. After a mismatch the runner sends all again: a new
// generation begins, and the earlier one stays until a generation that is at least as long has taken its place. So a
// trace never shrinks.
//
// A [Mask] replaces masked values by stars of the same number, so that offsets stay those of the runner. Bytes at the
// end that may begin a masked value are not stored. [Held] describes them without containing them: they are the start
// of a known value. So a value that is split over requests is masked too, by any replica.
package trace
