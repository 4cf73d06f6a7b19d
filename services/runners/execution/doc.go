// Package execution serves jobs while runners execute them: their state, trace and artifacts. It implements the
// interfaces of package gitlab.
//
// # Tokens
//
// A request has the token of one claim of a job. [Tokens] checks its signature. Then the stored claim decides, which is
// read anew for each request: the token must have its hash, the claim must be the last one of the job, and a runner
// must have the job. So a token is void at once when its job ends or is released. The first request confirms the claim.
// A claim that was not confirmed in time is released, and the request that comes too late is refused.
//
// After the end of a job its last token may repeat an update, which is answered with the result, and nothing else.
//
// # Transactions
//
// A [Store] calls a decision with a [Snapshot] that it has locked, and stores the [Decision] in the same transaction.
// Appends to a trace lock the trace. Whatever changes the job locks its pipeline, the job and then the trace. The end
// of a job ends its trace, and advances its pipeline ([Followers]), or nothing of it happens. A part of a trace is
// stored with the size of the trace, so a crash leaves no hole.
//
// # Maintenance
//
// [Maintenance] ends or releases jobs of runners that do not report, as [Overdue] decides. [Cleaner] deletes artifacts
// that have expired, and content that no artifact has.
package execution
