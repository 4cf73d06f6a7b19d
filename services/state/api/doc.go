// Package api serves the Connect API (also gRPC and JSON): it authenticates the caller, authorizes the call,
// validates the request, calls a domain method, and stores its result. Errors are faults.
//
// Messages and events of a change are stored in its transaction, so a call that was answered is never lost. A
// thing that the caller may not read does not exist for it.
package api
