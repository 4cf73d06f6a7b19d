// Package service is the lifecycle of a Lockstep process. A service consists of parts. [Run] opens
// all listeners, starts the parts, reports their readiness on /readyz, and drains them at the end.
//
// A part that fails is not ready, with its error as the reason, and restarts with back-off. So a
// dependency that is down delays the service and never crashes it. Only an error marked by
// [Permanent] ends the process.
//
// When the context of Run ends, the service drains: /readyz answers 503, and the context of each
// part ends after the parts that name it in StopBefore or StartAfter have stopped. A part finishes
// its work with [Handle.DrainContext], which ends at drain_timeout. Run returns nil when all parts
// stopped in time, else an error that names the others. The ops listener answers until the end.
//
// [Main] is for cmd/x: configuration, signals, exit status. SIGTERM and SIGINT drain; a second
// signal ends the process.
package service
