// Package failure is why a workspace could not be applied, in words that its user understands: a
// reason for programs, a sentence that says what was refused by whom and what to do.
//
// [Explain] is the one place that reads errors of the API server. It is pure and total: every error
// has a reason and a sentence of bounded length. What the API server says about a Secret is not
// repeated, since it may quote values.
package failure
