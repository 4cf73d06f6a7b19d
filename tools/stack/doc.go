// Package stack runs a whole Lockstep system on one machine: PostgreSQL, NATS, a Kubernetes control
// plane, every service and an agent.
//
// Services run in this process by their Main, or as programs of their own that can be killed, with their normal
// configuration, against real dependencies on loopback addresses. Any service may be run more than once. Used
// by `lockstep up` and by the end-to-end tests. A stack keeps its data in Options.Dir, or removes it. It reads
// no other kubeconfig than the given one.
package stack
