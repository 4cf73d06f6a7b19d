package actualstate

// State is the actual state of a workspace.
type State string

// States. Only Terminated is final.
const (
	CreationRequested State = "creation_requested"
	Starting          State = "starting"
	Running           State = "running"
	Stopping          State = "stopping"
	Stopped           State = "stopped"
	Failed            State = "failed"
	Error             State = "error"
	Terminating       State = "terminating"
	Terminated        State = "terminated"
	Unknown           State = "unknown"
)

// States returns every state.
func States() []State {
	return []State{
		CreationRequested,
		Starting,
		Running,
		Stopping,
		Stopped,
		Failed,
		Error,
		Terminating,
		Terminated,
		Unknown,
	}
}

// Termination is the progress of the deletion of a workspace's objects.
type Termination string

// Progress of a termination.
const (
	TerminationNone       Termination = "none"
	TerminationInProgress Termination = "in_progress"
	TerminationFinished   Termination = "finished"
)

// ApplyError explains why a workspace's objects could not be applied or deleted.
type ApplyError struct {
	// Revision that could not be applied.
	Revision int64
	// Reason is machine-readable, such as Forbidden.
	Reason string
	// Message for the user.
	Message string
}
