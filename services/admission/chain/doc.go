// Package chain decides the admission of a job. It is pure: time comes from its inputs, and the caller does the I/O.
//
// The controllers are asked one after the other: those of the project, of its groups upward, of the instance. Each sees
// the job as the ones before have changed it. [Begin] and [Advance] return the state and the next [Step]: ask a
// controller, admit the job, reject it, or wait. [Outstanding] returns the step of a stored state again, for a caller
// that does not know whether it took it.
//
// Rules:
//
//   - A rejection ends the chain. Its changes are ignored. Reasons are collected in order, each with its controller.
//   - Accepted runners intersect; no runner in common rejects the job. Rejected runners unite.
//   - If the controllers changed the job, and no existing runner can take it any more, the job is rejected.
//   - A failed attempt is repeated, up to the controller's maximum. After that, and after a time-out, the failure
//     policy decides: deny rejects the job, ignore continues without the controller.
//   - Changes by a validating controller are a failure, which no attempt can repair.
//   - A controller in dry run is asked once. Its decision is recorded and has no effect.
//   - A controller that changes while it is asked is asked again. One that is disabled or deleted is skipped. One that
//     has decided before is not asked again.
//   - At the deadline, the failure policy decides for each controller that has not answered.
//
// Inputs may be repeated, late and out of order: one that does not concern the current round of the current controller
// changes nothing. After the end, no input does.
package chain
