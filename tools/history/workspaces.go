package history

import (
	"cmp"
	"slices"

	"lockstep.internal/schemas/gen/events"
)

// Workspaces checks the public history of each workspace: it is created once and first; each
// desired revision has one change, in sequence, from the desired state before; actual states follow
// the state diagram; failures have a reason; and each event follows its causes. It does not hold
// after a restore from a copy.
func Workspaces(published []Record) Findings {
	var f Findings
	known := map[string]*workspace{}
	for _, r := range published {
		one := []Record{r}
		each(&f, one, events.TypeWorkspaceCreated, func(r Record, e events.WorkspaceCreated) {
			if known[e.WorkspaceID] != nil {
				f.addf("sequence %d: workspace %s is created twice", r.Sequence, e.Name)
			}
			known[e.WorkspaceID] = &workspace{desired: e.DesiredState, actual: e.ActualState, revision: e.DesiredRevision}
		})
		each(&f, one, events.TypeWorkspaceDesiredStateChanged, func(r Record, e events.WorkspaceDesiredStateChanged) {
			if w := created(&f, known, r, e.WorkspaceID, e.Name); w != nil {
				w.desire(&f, r, e)
			}
		})
		each(&f, one, events.TypeWorkspaceStateChanged, func(r Record, e events.WorkspaceStateChanged) {
			if w := created(&f, known, r, e.WorkspaceID, e.Name); w != nil {
				w.become(&f, r, e)
			}
		})
		each(&f, one, events.TypeWorkspaceDrifted, func(r Record, e events.WorkspaceDrifted) {
			w := created(&f, known, r, e.WorkspaceID, e.Name)
			if w == nil {
				return
			}
			// The same revision is applied again, or the next one follows.
			if w.drifted = e.DesiredRevision; e.DesiredRevision > w.revision+1 {
				f.addf("sequence %d: workspace %s: a drift causes revision %d, but the workspace has revision %d",
					r.Sequence, e.Name, e.DesiredRevision, w.revision)
			}
		})
	}
	return f
}

// workspace is a workspace at the current point of its history.
type workspace struct {
	desired  events.DesiredState
	actual   events.ActualState
	revision int
	drifted  int // the revision of the last drift
}

func created(f *Findings, known map[string]*workspace, r Record, id, name string) *workspace {
	if known[id] == nil {
		f.addf("sequence %d: workspace %s changes before it is created", r.Sequence, name)
	}
	return known[id]
}

func (w *workspace) desire(f *Findings, r Record, e events.WorkspaceDesiredStateChanged) {
	if e.DesiredRevision != w.revision+1 {
		f.addf("sequence %d: workspace %s goes from revision %d to %d", r.Sequence, e.Name, w.revision, e.DesiredRevision)
	}
	if e.From != w.desired {
		f.addf("sequence %d: workspace %s: event has previous desired state %s, want %s",
			r.Sequence, e.Name, e.From, w.desired)
	}
	if e.Cause != nil && *e.Cause == events.DesiredStateCauseRestartCompleted && w.actual != events.ActualStateStopped {
		f.addf("sequence %d: workspace %s: the restart completes before the workspace is stopped: it is %s",
			r.Sequence, e.Name, w.actual)
	}
	if e.Cause != nil && *e.Cause == events.DesiredStateCauseDrift && w.drifted != e.DesiredRevision {
		f.addf("sequence %d: workspace %s: revision %d precedes the drift that caused it",
			r.Sequence, e.Name, e.DesiredRevision)
	}
	w.revision, w.desired = e.DesiredRevision, e.To
}

func (w *workspace) become(f *Findings, r Record, e events.WorkspaceStateChanged) {
	if e.From != w.actual {
		f.addf("sequence %d: workspace %s: event has previous actual state %s, want %s",
			r.Sequence, e.Name, e.From, w.actual)
	}
	if e.DesiredState != w.desired {
		f.addf("sequence %d: workspace %s is %s with desired state %s, but the stream has %s",
			r.Sequence, e.Name, e.To, e.DesiredState, w.desired)
	}
	if e.Unexpected {
		f.addf("sequence %d: workspace %s: transition from %s to %s is not allowed",
			r.Sequence, e.Name, e.From, e.To)
	}
	if (e.To == events.ActualStateFailed || e.To == events.ActualStateError) && (e.Reason == "" || e.Message == "") {
		f.addf("sequence %d: workspace %s is %s without a reason", r.Sequence, e.Name, e.To)
	}
	w.actual = e.To
}

// desiredChange is one desired revision of a workspace.
type desiredChange struct {
	revision int
	user     bool // a user requested it
	what     string
}

// desiredChanges returns the desired revisions of each workspace, lowest first.
func desiredChanges(f *Findings, published []Record) map[string][]desiredChange {
	all := map[string][]desiredChange{}
	each(f, published, events.TypeWorkspaceCreated, func(_ Record, e events.WorkspaceCreated) {
		all[e.WorkspaceID] = append(all[e.WorkspaceID],
			desiredChange{revision: e.DesiredRevision, user: true, what: "created"})
	})
	each(f, published, events.TypeWorkspaceDesiredStateChanged, func(_ Record, e events.WorkspaceDesiredStateChanged) {
		user := e.Cause != nil && *e.Cause == events.DesiredStateCauseUser
		all[e.WorkspaceID] = append(all[e.WorkspaceID],
			desiredChange{revision: e.DesiredRevision, user: user, what: string(e.From) + " to " + string(e.To)})
	})
	for _, of := range all {
		slices.SortStableFunc(of, func(a, b desiredChange) int { return cmp.Compare(a.revision, b.revision) })
	}
	return all
}
