// Package history derives the rows of the history from facts: one row per rollout, with its state and its end.
//
// It is pure. Each fact must be passed once, in the order of the sequence numbers. A change contains only the columns
// that the facts determine, so it can be written without reading the row.
package history
