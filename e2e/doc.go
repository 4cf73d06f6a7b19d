// Package e2e is the root of the end-to-end tests: whole Lockstep systems on a real PostgreSQL, NATS
// and Kubernetes control plane, as their users and operators meet them. Each folder has the tests of
// one subject; docs/testing.md describes how they are organised.
package e2e
