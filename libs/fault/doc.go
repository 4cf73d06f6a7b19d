// Package fault is the one error that Lockstep shows to its callers: {code, message, details}, with
// a code from the registry (schemas/errors.json) and a cause that stays inside.
//
// An Error is made where the fault is understood (New, Wrap) and mapped at the border, once: to
// Connect and gRPC (NewInterceptor), to plain HTTP (Handler, WriteHTTP) and to an exit status
// (ExitCode). The way back exists too: a client with the interceptor, or FromHTTP, gets the same
// Error that the server made.
//
// Only Code, Message and Details leave the process. What was wrapped (fmt.Errorf around an Error,
// an Error around a cause) is for the log. An error that is no Error becomes `internal` without its
// text; it is logged with a reference that the caller is given, so that one finds the other.
// Context errors become canceled and deadline_exceeded. A code the reader does not know (a newer
// peer) becomes the nearest one by Connect code or HTTP status.
package fault
