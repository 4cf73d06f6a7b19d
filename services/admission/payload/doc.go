// Package payload is the public contract with admission controllers: what a controller receives about a job, and what
// it answers. The documents are an array of one, as schemas/admission describes them.
//
// [Encode] writes the same bytes for the same job, so that signatures and digests are stable. [ReadAnswer] accepts what
// controllers may send. It ignores unknown fields, and reads the synonyms denied, additions and removals. Everything
// else that is wrong is an [*AnswerError] with a code of its own, never an acceptance. The tags and runners of a
// rejection are not read.
//
// The contract only grows: a field is never removed, renamed or given another type.
package payload
