// Package history makes of facts what people look at: one row for each rollout, which says how it stands and, in the end, how it went.
//
// [Changes] is pure. Facts come in the order of their sequence, each once; what they do not speak of stays as it was, so that a change can be written
// without reading the row first.
package history
