// Package e2e tests whole Lockstep systems: every service as its users and operators meet it, on a real PostgreSQL, NATS and Kubernetes
// control plane ([lockstep.internal/tools/stack]).
//
// A system takes a while to start, so each test function starts one, and its subtests are promises that hold on the same system: at the same time
// where they are about different workspaces, one after the other where they take parts of it away. At the end of each, everything that the
// system has told is read again: a promise may hold and its history still be wrong.
//
// Nothing waits for time to pass. What is awaited is followed, on the API's watch or on the event streams, until it comes or a deadline of minutes says
// that it never will; so a slow machine makes the tests slow, and nothing else.
package e2e
