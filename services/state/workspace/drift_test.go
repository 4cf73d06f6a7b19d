package workspace_test

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/workspace"
)

func TestDrift(t *testing.T) {
	t.Parallel()
	listed := start().Add(time.Hour)
	whole := func(o *workspace.Observation) { o.ResyncBegunAt = listed }
	for name, test := range map[string]struct {
		workspace   func(w *workspace.Workspace)
		deployment  func(d *events.ObservedWorkload)
		observation func(o *workspace.Observation)
		message     string // none: no drift
	}{
		"unchanged": {},
		"scaled": {
			deployment: func(d *events.ObservedWorkload) { d.Generation++; *d.SpecReplicas = 3 },
			message:    "Deployment ws-7-ide/ide was scaled to 3 by somebody else; it is applied again",
		},
		"changed": {
			deployment: func(d *events.ObservedWorkload) { d.Generation++ },
			message:    "Deployment ws-7-ide/ide was changed by somebody else; it is applied again",
		},
		"scaled before it was applied": {
			deployment: func(d *events.ObservedWorkload) { d.Generation--; *d.SpecReplicas = 3 },
		},
		"being deleted": {
			deployment: func(d *events.ObservedWorkload) { d.Generation++; d.Object.DeletedAt = new(start()) },
		},
		"the revision is not applied yet": {
			workspace:  func(w *workspace.Workspace) { w.DesiredRevision++ },
			deployment: func(d *events.ObservedWorkload) { d.Generation++ },
		},
		"applying failed": {
			workspace:  func(w *workspace.Workspace) { w.ApplyError = &actualstate.ApplyError{Revision: 4} },
			deployment: func(d *events.ObservedWorkload) { d.Generation++ },
		},
		"to be terminated": {
			workspace:  func(w *workspace.Workspace) { w.DesiredState = workspace.DesiredTerminated },
			deployment: func(d *events.ObservedWorkload) { d.Generation++ },
		},
		"an old dispatcher without UID and generation": {
			workspace:  func(w *workspace.Workspace) { w.AppliedUID, w.AppliedGeneration = "", 0 },
			deployment: func(d *events.ObservedWorkload) { d.Generation++ },
		},
		"stopped, scaled up": {
			workspace:  func(w *workspace.Workspace) { w.DesiredState = workspace.DesiredStopped },
			deployment: func(d *events.ObservedWorkload) { d.Generation++ },
			message:    "Deployment ws-7-ide/ide was scaled to 1 by somebody else; it is applied again",
		},
		"recreated": {deployment: func(d *events.ObservedWorkload) { d.Object.UID = "theirs" }},
		"recreated, in a full resync": {
			deployment:  func(d *events.ObservedWorkload) { d.Object.UID = "theirs" },
			observation: whole,
			message:     "Deployment ws-7-ide/ide was deleted and recreated by somebody else; it is applied again",
		},
		"annotated": {deployment: func(d *events.ObservedWorkload) { d.Object.Annotations = nil }},
		"annotated, in a full resync": {
			deployment:  func(d *events.ObservedWorkload) { d.Object.Annotations = nil },
			observation: whole,
			message:     "Deployment ws-7-ide/ide differs from applied revision 4; it is applied again",
		},
		"annotated, in a full resync that began before it was applied": {
			workspace:  func(w *workspace.Workspace) { w.AppliedAt = listed },
			deployment: func(d *events.ObservedWorkload) { d.Object.Annotations = nil }, observation: whole,
		},
		"unchanged, in a full resync": {observation: whole},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := newFixture(t, func(w *workspace.Workspace) {
				w.DesiredRevision, w.AppliedRevision, w.AppliedAt, w.AppliedUID, w.AppliedGeneration = 4, 4, start(), "ours", 3
				w.ActualState = actualstate.Running
			})
			o := seen(deployment(1, "4"))
			o.Deployment.Object.UID = "ours"
			if test.workspace != nil {
				test.workspace(&before.Workspace)
			}
			if test.deployment != nil {
				test.deployment(o.Deployment)
			}
			if test.observation != nil {
				test.observation(&o)
			}
			after := before.Observe(o)
			if test.message == "" {
				require.Equal(t, before.DesiredRevision, after.DesiredRevision)
				require.Empty(t, after.named("drifted"))
				return
			}
			require.Equal(t, before.DesiredRevision+1, after.DesiredRevision)
			require.Equal(t, before.DesiredState, after.DesiredState)
			require.Equal(t, before.DesiredStateSince, after.DesiredStateSince, "policy durations do not restart")
			require.Equal(t, workspace.Cause{Kind: events.DesiredStateCauseDrift}, after.cause())
			changes := after.events
			drifted := changes[len(changes)-2]
			require.Equal(t, "drifted", drifted.Name)
			require.Equal(t, events.WorkspaceDrifted{
				WorkspaceID: before.ID.String(), Name: "ide", ProjectID: 4, AgentID: 7, DesiredRevision: 5, Message: test.message,
				Object: events.ObjectReference{ApiVersion: "apps/v1", Kind: "Deployment", Namespace: "ws-7-ide", Name: "ide"},
			}, drifted.Data)
			require.Equal(t, "desired_state_changed", changes[len(changes)-1].Name)
			require.Equal(t, after.DesiredRevision, after.Observe(o).DesiredRevision, "the revision is not applied yet")
		})
	}
}

func TestRepairsOfOneDeploymentAreLimited(t *testing.T) {
	t.Parallel()
	w := newFixture(t, func(w *workspace.Workspace) {
		w.AppliedRevision, w.AppliedAt, w.AppliedUID, w.AppliedGeneration = 1, start(), "ours", 2
	})
	o := seen(deployment(1, "1"))
	o.Deployment.Object.UID, o.At = "ours", start().Add(time.Second)
	after := w.Observe(o)
	require.EqualValues(t, 1, after.DesiredRevision)
	require.Equal(t, start().Add(5*time.Second), after.RecomputeAt, "a tick recomputes it")
	o.At = after.RecomputeAt
	require.EqualValues(t, 2, after.Observe(o).DesiredRevision)
}

func TestRepairsAreEvents(t *testing.T) {
	t.Parallel()
	policy := events.ObjectReference{
		ApiVersion: "networking.k8s.io/v1",
		Kind:       "NetworkPolicy",
		Namespace:  "ws-7-ide",
		Name:       "ide",
	}
	applied := newFixture(t).Applied(1, start())
	a := workspace.AppliedReport{Revision: 1, At: start().Add(time.Hour), Repaired: []events.ObjectReference{policy}}
	after := applied.AppliedWith(a)
	require.Equal(t, applied.DesiredRevision, after.DesiredRevision, "the dispatcher has already repaired it")
	changes := after.events
	require.Len(t, changes, 1)
	require.Equal(
		t,
		"NetworkPolicy ws-7-ide/ide was changed or deleted by somebody else; it has been applied again",
		changes[0].Data.(events.WorkspaceDrifted).Message,
	)
	a.At = a.At.Add(time.Hour)
	require.NotEqual(t, changes[0].ID, applied.AppliedWith(a).events[0].ID, "a second time is another event")
	later := applied
	later.AppliedRevision = 2
	require.Empty(t, later.AppliedWith(a).named("drifted"))
}

func TestNextRevisionIsAboveTheClusters(t *testing.T) {
	t.Parallel()
	w := newFixture(t, func(w *workspace.Workspace) { w.DesiredRevision = 3 })
	after := w.Superseded(9, start())
	require.EqualValues(t, 10, after.DesiredRevision)
	require.Nil(t, after.ApplyError, "no apply error")
	require.Equal(t, after.Workspace, after.Superseded(9, start()).Workspace, "once")
	require.Equal(t, w.Workspace, w.Superseded(2, start()).Workspace, "the revision that is not applied yet is newer")
	gone := newFixture(t, func(w *workspace.Workspace) { w.Termination = actualstate.TerminationFinished })
	require.Equal(t, gone.Workspace, gone.Superseded(9, start()).Workspace)
}

// simulation is a workspace, its cluster, and two event streams that are consumed independently.
type simulation struct {
	now time.Time
	w   fixture

	// The cluster's Deployment.
	there      bool
	uid        int
	generation int64
	replicas   int
	revision   int64

	inventory int64 // what the dispatcher has applied
	applied   []workspace.AppliedReport
	observed  []*events.ObservedWorkload // nil: deleted

	// What the state service has stored.
	seen bool
	last *events.ObservedWorkload

	externalChanges, repairs int
}

func (f *simulation) snapshot() *events.ObservedWorkload {
	if !f.there {
		return nil
	}
	d := deployment(f.replicas, strconv.FormatInt(f.revision, 10))
	d.Object.UID, d.Generation, d.ObservedGeneration = strconv.Itoa(f.uid), int(f.generation), int(f.generation)
	return d
}

// apply simulates the dispatcher: it applies the latest desired revision.
func (f *simulation) apply() {
	want := 0
	if f.w.DesiredState == workspace.DesiredRunning {
		want = 1
	}
	f.inventory = max(f.inventory, f.w.DesiredRevision)
	drifted := f.there && f.revision == f.inventory && f.replicas != want || !f.there && f.revision == f.inventory
	switch {
	case !f.there:
		f.there, f.uid, f.generation = true, f.uid+1, 1
	case f.replicas != want:
		f.generation++
	}
	f.replicas, f.revision = want, f.inventory
	a := workspace.AppliedReport{
		Revision:             f.inventory,
		At:                   f.now,
		DeploymentUID:        strconv.Itoa(f.uid),
		DeploymentGeneration: f.generation,
	}
	if drifted {
		a.Repaired = []events.ObjectReference{{Kind: "Deployment", Namespace: "ws-7-ide", Name: "ide"}}
	}
	f.applied, f.observed = append(f.applied, a), append(f.observed, f.snapshot())
}

func (f *simulation) scale(to int) {
	if f.there && f.replicas != to {
		f.replicas, f.generation = to, f.generation+1
		f.externalChanges++
		f.observed = append(f.observed, f.snapshot())
	}
}

func (f *simulation) lose() {
	if f.there {
		f.there = false
		f.externalChanges++
		f.observed = append(f.observed, nil)
	}
}

func (f *simulation) takeApplied() bool {
	if len(f.applied) == 0 {
		return false
	}
	a := f.applied[0]
	f.applied = f.applied[1:]
	f.observe(f.w.AppliedWith(a), workspace.Observation{})
	return true
}

func (f *simulation) takeObserved() bool {
	if len(f.observed) == 0 {
		return false
	}
	was := f.last
	f.last, f.observed, f.seen = f.observed[0], f.observed[1:], true
	f.observe(f.w, workspace.Observation{DeploymentDeleted: was != nil && f.last == nil})
	return true
}

// observe is what the state service does after each.
func (f *simulation) observe(w fixture, o workspace.Observation) {
	o.Seen, o.Deployment, o.At = f.seen, f.last, f.now
	after := w.Observe(o)
	if after.DesiredRevision > w.DesiredRevision {
		f.repairs++
	}
	f.w = after
}

// settle delivers all pending events.
func (f *simulation) settle(t *testing.T) {
	t.Helper()
	for range 1000 {
		f.now = f.now.Add(time.Second)
		moved := f.takeApplied()
		moved = f.takeObserved() || moved
		if f.inventory < f.w.DesiredRevision {
			f.apply()
			moved = true
		}
		if at := f.w.RecomputeAt; !at.IsZero() {
			if !f.now.Before(at) {
				f.observe(f.w, workspace.Observation{})
			}
			moved = true
		}
		if !moved {
			return
		}
	}
	require.Fail(t, "the simulation did not converge", "desired %d, applied %d", f.w.DesiredRevision, f.w.AppliedRevision)
}

// simulate changes the cluster while events arrive in any order, late or not at all. It checks that each change
// is repaired at most once, and that the cluster ends in the desired state.
func simulate(t *testing.T, script []byte) {
	t.Helper()
	s := &simulation{now: start(), w: newFixture(t)}
	for _, b := range script {
		s.now = s.now.Add(time.Second)
		switch b % 9 {
		case 0, 5:
			s.apply() // a new revision, or a repair
		case 1:
			s.takeApplied()
		case 2:
			s.takeObserved()
		case 3:
			s.scale(int(b>>4) % 3)
		case 4:
			s.lose()
		case 6: // the watcher sends the latest version only
			if len(s.observed) > 1 {
				s.observed = s.observed[1:]
			}
		case 7, 8:
			to := map[byte]workspace.DesiredState{7: workspace.DesiredStopped, 8: workspace.DesiredRunning}[b%9]
			var err error
			s.w, err = s.w.SetDesired(to, 9, s.now)
			require.NoError(t, err)
		}
		require.LessOrEqual(t, s.repairs, s.externalChanges, "at most one repair per change")
	}
	s.settle(t)
	require.LessOrEqual(t, s.repairs, s.externalChanges, "each change is answered once")

	// A full resync finds only changes that the streams did not contain.
	s.now = s.now.Add(time.Minute)
	s.last, s.seen = s.snapshot(), true
	s.observe(s.w, workspace.Observation{ResyncBegunAt: s.now})
	s.settle(t)
	answered := s.repairs
	s.now = s.now.Add(time.Minute)
	s.observe(s.w, workspace.Observation{ResyncBegunAt: s.now})
	require.Equal(t, answered, s.repairs, "one resync is enough")
	want := map[workspace.DesiredState]int{workspace.DesiredRunning: 1}[s.w.DesiredState]
	require.True(t, s.there)
	require.Equal(t, want, s.replicas)
	require.Equal(t, s.w.DesiredRevision, s.revision)
	require.Equal(t, s.w.DesiredRevision, s.w.AppliedRevision)
}

func TestDriftIsRepairedOnceInAnyOrderOfReports(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 1)) // FuzzDriftIsRepairedOnce tries other orders
	for range 5000 {
		script := make([]byte, 60)
		for i := range script {
			script[i] = byte(random.Uint32())
		}
		simulate(t, script)
	}
}

func FuzzDriftIsRepairedOnce(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 2, 0, 1, 2})
	f.Add([]byte{0, 3, 0, 3, 1, 1, 2, 2, 2, 2})
	f.Add([]byte{0, 2, 1, 4, 5, 2, 2, 1, 6, 0, 1})
	f.Add([]byte{0, 1, 2, 7, 0, 3, 4, 0, 3, 1, 2, 6, 2, 1})
	f.Fuzz(simulate)
}

func TestReplacedDeploymentIsDetected(t *testing.T) {
	t.Parallel()
	applied := workspace.AppliedDeployment{UID: "a", Revision: 7}
	for name, test := range map[string]struct {
		applied  workspace.AppliedDeployment
		existing workspace.ExistingDeployment
		want     bool
	}{
		"the applied one":              {applied, workspace.ExistingDeployment{UID: "a", Revision: "7"}, false},
		"recreated":                    {applied, workspace.ExistingDeployment{UID: "b", Revision: "7"}, true},
		"another revision":             {applied, workspace.ExistingDeployment{UID: "a", Revision: "6"}, true},
		"annotation removed":           {applied, workspace.ExistingDeployment{UID: "a"}, true},
		"applied UID is not known":     {workspace.AppliedDeployment{Revision: 7}, workspace.ExistingDeployment{UID: "a"}, false},
		"workspace never applied":      {workspace.AppliedDeployment{}, workspace.ExistingDeployment{UID: "a", Revision: "1"}, false},
		"revision is not a number":     {applied, workspace.ExistingDeployment{UID: "a", Revision: "seven"}, true},
		"revision with a leading zero": {applied, workspace.ExistingDeployment{UID: "a", Revision: "07"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, test.applied.ReplacedBy(test.existing))
		})
	}
}
