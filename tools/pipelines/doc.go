// Package pipelines draws CI pipelines for a terminal. Its functions are pure: the same pipeline, page and time give
// the same lines. Names and messages come from users, so they are shown without control characters.
package pipelines
