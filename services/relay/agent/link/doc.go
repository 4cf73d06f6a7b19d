// Package link keeps a connection with a relay.
//
// A [Keeper] connects, and connects again whenever the connection is lost, for ever. Pauses grow and are spread at random from the first one on, so that the agents of a relay that is
// started again do not all come at once; what a relay asks for is waited for in any case.
//
// A connection that is old, or whose relay says that it leaves, is replaced before it is given up: the next one is made first, then the old one is drained, which ends with what was
// begun on it. What lingers on it for too long is cut.
//
// With the end of its context a keeper drains, too; what is not over when the time for finishing is, is cut. It leaves no goroutine behind.
package link
