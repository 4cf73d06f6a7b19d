// Package route chooses the connection of a request to an agent ([Decide]), and decides whether a failed request is
// retried ([AfterFailure]). It is pure.
//
// The relay that received the request from its caller decides, waits and retries. Other relays and agents follow the
// [Destination] of a stream, so there are no routing loops.
package route

import "lockstep.internal/services/relay/registry"

// Decision is the connection to try next.
type Decision struct {
	// Connection is nil if none is left.
	Connection *registry.Connection
	// Local reports whether this relay holds the connection.
	Local bool
}

// Decide chooses one of an agent's connections: it prefers connections of this relay (self). pick chooses among
// n equal candidates and returns an index in [0, n). Decide skips connections that were already tried. If
// wanted is not 0, only that connection is chosen.
func Decide(
	connections []registry.Connection, self string, wanted int64, tried map[int64]bool, pick func(n int) int,
) Decision {
	var local, remote []registry.Connection
	for _, c := range connections {
		switch {
		case tried[c.ID] || wanted != 0 && c.ID != wanted:
		case c.RelayID == self:
			local = append(local, c)
		default:
			remote = append(remote, c)
		}
	}
	if len(local) > 0 {
		return Decision{Connection: &local[pick(len(local))], Local: true}
	}
	if len(remote) > 0 {
		return Decision{Connection: &remote[pick(len(remote))]}
	}
	return Decision{}
}
