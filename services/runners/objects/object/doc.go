// Package object has what all object stores share: the rules for keys, the description of an object, the errors, and
// the reader that limits and hashes content.
package object
