// Package history turns facts into rows of the history: one row per rollout, with its state and its end.
//
// It is pure. Facts come in the order of their sequence, each once. A change has only the columns that the facts
// determine, so that it can be written without reading the row.
package history
