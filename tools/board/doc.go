// Package board draws running rollouts for people at a terminal.
//
// [Lines] is the live view: lines of text that fit the terminal. [Changes] lists the facts between
// two messages about a rollout, for output without a terminal. Both are pure functions. [Board]
// keeps the messages of a watch, also when the watch restarts, and reports each change once.
//
// Text from a cluster reaches the terminal as printable characters only.
package board
