// Package access is who may enter which workspace, and the doors that are open. It has no I/O: an adapter sets entries
// as it reads them, and everybody who has entered learns at once when the right ends.
package access
