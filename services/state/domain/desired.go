package domain

import (
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
)

// DesiredState is what a user wants of a workspace.
type DesiredState string

// Desired states. Terminated is permanent. RestartRequested reaches the cluster as stopped and becomes Running once that is seen.
const (
	DesiredRunning          DesiredState = "running"
	DesiredStopped          DesiredState = "stopped"
	DesiredTerminated       DesiredState = "terminated"
	DesiredRestartRequested DesiredState = "restart_requested"
)

// DesiredStates returns every desired state.
func DesiredStates() []DesiredState {
	return []DesiredState{DesiredRunning, DesiredStopped, DesiredTerminated, DesiredRestartRequested}
}

// Target is what the dispatcher is told to bring about.
func (d DesiredState) Target() events.DesiredTarget {
	switch d {
	case DesiredRunning:
		return events.DesiredTargetRunning
	case DesiredTerminated:
		return events.DesiredTargetTerminated
	case DesiredStopped, DesiredRestartRequested:
		return events.DesiredTargetStopped
	default:
		return events.DesiredTargetStopped
	}
}

// ActualState is what a workspace is, as far as its cluster says. The states are declared in package actualstate.
type ActualState = actualstate.State

// Cause is why what is wanted of a workspace changed.
type Cause struct {
	Kind events.DesiredStateCause
	// UserID of who asked; 0 when the system did.
	UserID int64
	// Message says why to the user; empty when a user asked.
	Message string
}
