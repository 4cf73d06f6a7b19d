// Package cli is the command line of Lockstep. It calls the API, reads the streams, and runs a
// whole system on one machine.
//
// A command prints a table, or with -o json|yaml the messages of the API. Results go to standard
// output, everything else to standard error. The exit status is that of the error code in
// schemas/errors.json.
//
// Flags override LOCKSTEP_* variables, which override the client configuration file.
package cli
