// Package board shows rollouts as they go, for people at a terminal.
//
// [Lines] is the live view: it draws rollouts as lines of text that are never wider, nor more, than
// the terminal has. [Changes] says what happened between two messages about a rollout, a line a
// fact, where there is no terminal. Both are pure functions: the same rollouts at the same time
// give the same lines. [Board] keeps what a watch tells, in order, and says once what has ended,
// also across a watch that was begun again.
//
// Nothing that a cluster wrote reaches the terminal but as printable text.
package board
