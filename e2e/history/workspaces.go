package history

import (
	"cmp"
	"slices"

	"lockstep.internal/schemas/gen/events"
)

// Workspaces checks the public history of each workspace: created once and first; one change of
// what is wanted for each revision, contiguous, each from what was wanted before; changes of the
// actual state that follow from each other on a path of the state diagram; and who is in trouble
// knows why. It holds for a history that has never been restored from a copy.
func Workspaces(told []Record) Findings {
	var f Findings
	known := map[string]*workspace{}
	for _, r := range told {
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
	}
	return f
}

// workspace is one as far as its history is read.
type workspace struct {
	desired  events.DesiredState
	actual   events.ActualState
	revision int
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
		f.addf("sequence %d: workspace %s is no longer wanted %s, but was wanted %s", r.Sequence, e.Name, e.From, w.desired)
	}
	w.revision, w.desired = e.DesiredRevision, e.To
}

func (w *workspace) become(f *Findings, r Record, e events.WorkspaceStateChanged) {
	if e.From != w.actual {
		f.addf("sequence %d: workspace %s is no longer %s, but was %s", r.Sequence, e.Name, e.From, w.actual)
	}
	if e.Unexpected {
		f.addf("sequence %d: no path leads workspace %s from %s to %s", r.Sequence, e.Name, e.From, e.To)
	}
	if (e.To == events.ActualStateFailed || e.To == events.ActualStateError) && (e.Reason == "" || e.Message == "") {
		f.addf("sequence %d: workspace %s is %s and does not know why", r.Sequence, e.Name, e.To)
	}
	w.actual = e.To
}

// wish is a revision of what is wanted of a workspace.
type wish struct {
	revision int
	user     bool // a user asked for it
	what     string
}

// wishes are the revisions of each workspace, lowest first.
func wishes(f *Findings, told []Record) map[string][]wish {
	all := map[string][]wish{}
	each(f, told, events.TypeWorkspaceCreated, func(_ Record, e events.WorkspaceCreated) {
		all[e.WorkspaceID] = append(all[e.WorkspaceID], wish{revision: e.DesiredRevision, user: true, what: "created"})
	})
	each(f, told, events.TypeWorkspaceDesiredStateChanged, func(_ Record, e events.WorkspaceDesiredStateChanged) {
		user := e.Cause != nil && *e.Cause == events.DesiredStateCauseUser
		all[e.WorkspaceID] = append(
			all[e.WorkspaceID],
			wish{revision: e.DesiredRevision, user: user, what: string(e.From) + " to " + string(e.To)},
		)
	})
	for _, of := range all {
		slices.SortStableFunc(of, func(a, b wish) int { return cmp.Compare(a.revision, b.revision) })
	}
	return all
}
