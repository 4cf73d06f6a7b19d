// Package filter decides which observed versions are published. It is pure.
package filter
