// Package route chooses the connection of a request to an agent. It is pure.
//
// The relay that took the request from its caller decides ([Decide]), waits and retries. Other relays and agents
// only obey the [Destination] of a stream, so no request goes in circles.
package route

import "lockstep.internal/services/relay/registry"

// Decision is the connection to try next.
type Decision struct {
	// Connection is nil if none is left.
	Connection *registry.Connection
	// Local is that this relay holds it.
	Local bool
}

// Decide chooses one of an agent's connections: one that this relay (self) holds before those of other relays.
// Among equals, pick returns the index, from 0 to below n. It skips those that were tried. If wanted is not 0, only
// that connection is chosen.
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
