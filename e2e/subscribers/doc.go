// Package subscribers tests the example programs in deploy/subscribers: each reads deploy facts
// from a NATS server with real accounts, with the credentials that `lockstep subscriber create`
// writes, and resumes where it stopped. The programs are built and run as a user would: by the go
// command, by npm and node, and by a shell with the nats command line. A tool that is missing fails
// the test.
package subscribers
