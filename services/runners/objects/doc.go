// Package objects stores the content of artifacts: in a folder (package disk), or in a bucket of a store that speaks
// S3 (package s3). [Open] opens the store of a [Config].
//
// # Contract
//
// An object is written once, as a whole: a reader sees all of it or nothing, also after a crash or a power failure.
// After Put returns without an error, the object is durable. Two Puts of one key are both complete: the last one that
// ends wins. Callers use a new key for each upload, so this does not happen. No key may be another key with a slash and
// more behind it: MinIO lists only one of the two.
//
// Content that is too large, or whose reader fails, leaves nothing. When the store itself fails, or the process is
// killed, parts may remain, which nobody can open. Sweep removes them. A Put whose last answer is lost returns an error
// although the object exists: the caller deletes the key or finds it with List.
//
// Errors are [ErrNotFound], [ErrTooLarge], [ContentError] and the errors of the context. Everything else is the fault
// unavailable: the caller may try again.
//
// Several processes may use one store. All methods are safe for concurrent use.
package objects
