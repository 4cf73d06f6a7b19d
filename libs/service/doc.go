// Package service is the one lifecycle of a Lockstep process. A service is a set of parts; Run opens
// all listeners, starts the parts together (a part with After waits until those are ready), says in
// /readyz what is not ready and why, and drains on the way out.
//
// A part that fails is not ready, with its error as the reason, and is started again with back-off:
// a dependency that is down is waited for. Only an error marked Permanent ends the process.
//
// When the context of Run is done the service drains: /readyz answers 503, the context of each part is
// cancelled (what a part Uses or comes After is stopped after it), and parts finish what they hold
// with Self.Finish, a context that lives until drain_timeout is over. Run returns nil when all ended in
// time, and an error that names the rest otherwise. The ops listener answers until the end.
//
// Main is for cmd/x: configuration, signals, exit status. SIGTERM and SIGINT drain; a second one ends
// the process at once.
package service
