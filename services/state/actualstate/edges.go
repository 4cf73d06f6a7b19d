package actualstate

import "slices"

// next returns the states that may follow a state directly, Unknown aside.
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

// Expected reports whether a path of the state diagram leads from one state to the other: any number
// of states on it may have been skipped. Every state may become Unknown and every state may follow it;
// no path leads through it. A state is expected to stay what it is. A workspace that could not be
// applied and then is, while its cluster has not shown anything of it yet, is where it began: no path
// leads on from there.
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
