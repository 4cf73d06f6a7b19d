package workspace_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/workspace"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func start() time.Time { return time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC) }

// fixture is a workspace with the events of the last decision, so that tests can chain decisions.
type fixture struct {
	workspace.Workspace

	events []workspace.Event
}

func newFixture(t *testing.T, changes ...func(w *workspace.Workspace)) fixture {
	t.Helper()
	w, created, err := workspace.New(workspace.Creation{
		Name:      "ide",
		ProjectID: 4,
		AgentID:   7,
		UserID:    9,
		Template:  "default",
		Spec:      workspace.Spec{Image: "registry.example/ide:9"},
		Now:       start(),
	})
	require.NoError(t, err)
	for _, change := range changes {
		change(&w)
	}
	return fixture{w, created}
}

func after(w workspace.Workspace, events []workspace.Event) fixture { return fixture{w, events} }

func (f fixture) SetDesired(to workspace.DesiredState, userID int64, now time.Time) (fixture, error) {
	w, events, err := f.Workspace.SetDesired(to, userID, now)
	return fixture{w, events}, err
}

func (f fixture) SetSpec(spec workspace.Spec, userID int64, now time.Time) (fixture, error) {
	w, events, err := f.Workspace.SetSpec(spec, workspace.Maximums{}, userID, now)
	return fixture{w, events}, err
}

func (f fixture) Redispatch(now time.Time) fixture { return after(f.Workspace.Redispatch(now)) }

func (f fixture) Observe(o workspace.Observation) fixture { return after(f.Workspace.Observe(o)) }

func (f fixture) Expire(p workspace.AgePolicies, clock time.Time) fixture {
	return after(f.Workspace.Expire(p, clock))
}

func (f fixture) Applied(revision int64, at time.Time) fixture {
	return f.AppliedWith(workspace.AppliedReport{Revision: revision, At: at})
}

func (f fixture) AppliedWith(a workspace.AppliedReport) fixture { return after(f.Workspace.Applied(a)) }

func (f fixture) Superseded(revision int64, at time.Time) fixture {
	return after(f.Workspace.Superseded(revision, at))
}

func (f fixture) ApplyFailed(e actualstate.ApplyError, at time.Time) fixture {
	return after(f.Workspace.ApplyFailed(e, at))
}

func (f fixture) Terminating(revision int64, at time.Time) fixture {
	return after(f.Workspace.Terminating(workspace.TerminatingReport{Revision: revision, At: at}))
}

func (f fixture) Terminated(revision int64, at time.Time) fixture {
	return after(f.Workspace.Terminated(revision, at))
}

// named returns the data of the last decision's events with a name.
func (f fixture) named(name string) []any {
	var found []any
	for _, e := range f.events {
		if e.Name == name {
			found = append(found, e.Data)
		}
	}
	return found
}

// warnings returns the expiry warnings of the last decision.
func (f fixture) warnings() []events.WorkspaceExpiryWarning {
	var found []events.WorkspaceExpiryWarning
	for _, data := range f.named("expiry_warning") {
		found = append(found, data.(events.WorkspaceExpiryWarning))
	}
	return found
}

// cause returns why the last decision made a revision; empty if it made none.
func (f fixture) cause() workspace.Cause {
	changed := f.named("desired_state_changed")
	if len(changed) == 0 {
		return workspace.Cause{}
	}
	data := changed[len(changed)-1].(events.WorkspaceDesiredStateChanged)
	return workspace.Cause{Kind: *data.Cause, UserID: int64(data.UserID), Message: data.Message}
}

// deployment returns a complete Deployment.
func deployment(replicas int, revision string) *events.ObservedWorkload {
	return &events.ObservedWorkload{
		Object: events.ObjectMeta{
			Namespace: "ws-7-ide", Name: "ide", Annotations: map[string]string{workspace.AnnotationDesiredRevision: revision},
		},
		Generation: 3, ObservedGeneration: 3, SpecReplicas: &replicas, HasStatus: true, AvailableReplicas: replicas,
		Conditions: []events.Condition{
			{Type: "Available", Reason: "MinimumReplicasAvailable"}, {Type: "Progressing", Reason: "NewReplicaSetAvailable"},
		},
	}
}

func seen(d *events.ObservedWorkload) workspace.Observation {
	return workspace.Observation{Seen: true, Deployment: d, At: start().Add(time.Minute)}
}
