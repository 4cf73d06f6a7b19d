// Package fault is the error that Lockstep returns to callers: {code, message, details}, with a
// code of the registry (schemas/errors.json) and a cause that stays internal.
//
// Code that understands a failure creates an Error (New, Wrap). It is mapped once, at the boundary:
// to Connect and gRPC (NewInterceptor), to plain HTTP (Handler, WriteHTTP) and to an exit status
// (ExitCode). A client with the interceptor, or FromHTTP, gets the same Error back.
//
// Only Code, Message and Details leave the process. Wrapped errors and causes go to the log. Any
// other error becomes `internal` without its text, and is logged with a reference that the caller
// receives. Context errors become canceled and deadline_exceeded. An unknown code of a newer peer
// becomes the nearest one by Connect code or HTTP status.
package fault
