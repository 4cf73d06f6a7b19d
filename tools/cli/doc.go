// Package cli is the command line of Lockstep: people's and scripts' way to the API, the streams, and a whole system on one machine.
//
// Every command prints a table for people, or with -o json|yaml what programs read: the API's own messages in JSON form. Results go to
// standard output, everything else to standard error. The exit code is that of the error's code (schemas/errors.json): 0 success, 2 a
// wrong request, 3 not logged in, 4 not allowed, 5 not found …
//
// Where the API and the streams are is read from the client configuration: flags, then LOCKSTEP_* variables, then the file
// named by LOCKSTEP_CLIENT or --client, by default lockstep/client.yaml in the user's configuration folder.
package cli
