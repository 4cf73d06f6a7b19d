// Package subscribers holds the programs in deploy/subscribers to what they promise to outside
// tools: each reads deploy facts from a NATS server with real accounts, with the credentials that
// `lockstep subscriber create` writes, and after it was away goes on where it ended.
//
// The programs are made and run as a reader would: by the go command, by npm and node, and by a
// shell with the nats command line. What a machine lacks for that fails the test, and does not skip
// it.
package subscribers
