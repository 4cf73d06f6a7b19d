package route

import "lockstep.internal/services/relay/registry"

// Decision is what to do next for a request to an agent.
type Decision struct {
	// Connection to go through; nil where none is left.
	Connection *registry.Connection
	// Local is that this relay holds it.
	Local bool
}

// Decide chooses among the connections of an agent: one that this relay holds before those of others, and any of them alike, by pick, which returns a number from 0 to below n. What
// was tried in vain for this request is not tried again. wanted is the only connection that will do; 0 for any.
func Decide(connections []registry.Connection, self string, wanted int64, tried map[int64]bool, pick func(n int) int) Decision {
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
