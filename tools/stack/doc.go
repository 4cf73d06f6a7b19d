// Package stack runs a whole Lockstep system on one machine: PostgreSQL, NATS, a Kubernetes control
// plane, every service and an agent.
//
// Services run in this process by their Main, or as programs of their own that can be killed, with
// the configuration they would have elsewhere; the parts around them are the real ones, on loopback
// addresses. Any service may be run more than once. `lockstep up` is this package with a terminal,
// end-to-end tests are this package with assertions. A stack keeps its data where it is told to, or
// leaves nothing behind. It touches no kubeconfig but the one it is given.
package stack
