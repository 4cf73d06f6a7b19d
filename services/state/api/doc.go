// Package api serves the Connect API (also gRPC and JSON): it authenticates the caller, authorizes the call,
// validates the request, calls a domain method, and stores its result. Errors are faults.
//
// A change, its events and messages are one transaction, so the change of a successful call is never lost. An object
// that the caller may not read gives not_found.
package api
