package processes

import "time"

// StartedBy is who has started a process.
type StartedBy string

// Values of StartedBy.
const (
	// Others are the image's command and everything else that has no mark.
	Others StartedBy = ""
	// Person is a session: a shell, a command or a terminal.
	Person StartedBy = "person"
	// Editor is the editor of the workspace.
	Editor StartedBy = "editor"
)

// Variable is the environment variable with the mark of a process.
const Variable = "LOCKSTEP_STARTED_BY"

// Mark returns the variable of the environment that marks processes of a workspace, NAME=VALUE. It has the id of the
// workspace: agents outside of containers see the processes of each other.
func Mark(by StartedBy, workspace string) string {
	return Variable + "=" + string(by) + "@" + workspace
}

// Key names a process: its id is used again after its end, but not at the same time.
type Key struct {
	ID int
	// Start is when the process started, in units of the kernel.
	Start uint64
}

// Process is a process at one moment.
type Process struct {
	Key

	// Parent is the id of its parent.
	Parent int
	// Name of the program, see [workspaceagent.CleanProgramName].
	Name string
	// Terminal reports whether it has a controlling terminal.
	Terminal bool
	// StartedBy is its mark; see Assign.
	StartedBy StartedBy
	// Own is the processor time that it has used, Waited that of its children that have ended.
	Own, Waited time.Duration
}

// isOfPeople reports whether the work of the process counts.
func (p Process) isOfPeople() bool {
	return p.StartedBy == Person || p.StartedBy == Editor && p.Terminal
}

// Sample has the processes of one moment. The zero value is none.
type Sample struct {
	At        time.Time
	Processes map[Key]Process
}

// Assign returns a sample in which each process has the mark of its environment, the one that it had in the sample
// before, or that of its parent.
func Assign(before Sample, at time.Time, found []Process) Sample {
	s := Sample{At: at, Processes: make(map[Key]Process, len(found))}
	byID := make(map[int]Process, len(found))
	for _, p := range found {
		if p.StartedBy == Others {
			p.StartedBy = before.Processes[p.Key].StartedBy
		}
		byID[p.ID] = p
	}
	for id, p := range byID {
		p.StartedBy = inherited(byID, id)
		s.Processes[p.Key] = p
	}
	return s
}

// inherited returns the first mark of a process and its ancestors.
func inherited(byID map[int]Process, id int) StartedBy {
	for range len(byID) { // parents of a sample may form a circle: it is not taken at one moment
		p, known := byID[id]
		if !known || p.StartedBy != Others {
			return p.StartedBy
		}
		parent, known := byID[p.Parent]
		if !known || parent.Start > p.Start {
			return Others // the id of the parent is used again
		}
		id = p.Parent
	}
	return Others
}
