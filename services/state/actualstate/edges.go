package actualstate

import "slices"

// next returns the direct successors of a state in the state diagram, without Unknown.
func next(s State) []State {
	switch s {
	case CreationRequested:
		return []State{Starting, Error}
	case Starting:
		return []State{Running, Failed, Stopping, Terminating, Error}
	case Running:
		return []State{Stopping, Starting, Failed, Terminating, Error}
	case Stopping:
		return []State{Stopped, Failed, Terminating, Error}
	case Stopped:
		return []State{Starting, Failed, Error, Terminating}
	case Failed:
		return []State{Starting, Running, Stopping, Stopped, Terminating, Error}
	case Error:
		return []State{Starting, Running, Stopped, Terminating}
	case Terminating:
		return []State{Terminated, Error}
	case Terminated, Unknown:
		return nil
	default:
		return nil
	}
}

// Expected reports whether the state diagram has a path from one state to the other. Intermediate states may be
// skipped. Changes to and from Unknown are always expected, but a path does not go through Unknown. A state
// that stays the same is expected, too. Error to CreationRequested is expected: the apply succeeded and no Deployment
// was reported yet.
func Expected(from, to State) bool {
	if from == to || from == Unknown || to == Unknown || from == Error && to == CreationRequested {
		return true
	}
	reached := []State{from}
	for i := 0; i < len(reached); i++ {
		for _, s := range next(reached[i]) {
			if s == to {
				return true
			}
			if !slices.Contains(reached, s) {
				reached = append(reached, s)
			}
		}
	}
	return false
}
