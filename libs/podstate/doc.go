// Package podstate explains why pods do not start: a reason for programs and a sentence for people. Workspaces and
// rollouts have the same rules and sentences. It is pure.
package podstate
