package history_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/tools/history"
)

const (
	cell  = topology.Cell("local")
	agent = int64(6)
	id    = "0197f0c0-0000-7000-8000-000000000001"
	other = "0197f0c0-0000-7000-8000-000000000002"
)

// builder builds the records of a stream.
type builder struct {
	t   *testing.T
	all []history.Record
}

// add puts an event at the end.
func (b *builder) add(subject, source, kind string, data any) *builder {
	b.t.Helper()
	e, err := event.New(
		event.Attributes{Type: kind, Source: source, Subject: id, ID: strconv.Itoa(len(b.all) + 1), Time: time.UnixMilli(1)},
		data,
	)
	require.NoError(b.t, err)
	message, err := event.Encode(e, subject)
	require.NoError(b.t, err)
	b.all = append(b.all,
		history.Record{Subject: subject, Sequence: uint64(len(b.all) + 1), Header: message.Header, Data: message.Data})
	return b
}

func (b *builder) published(kind, name string, data any) *builder {
	b.t.Helper()
	return b.add(cell.Workspace(1, id, name), event.ServiceSource(string(cell), "state"), kind, data)
}

func (b *builder) created() *builder {
	b.t.Helper()
	return b.published(events.TypeWorkspaceCreated, "created", events.WorkspaceCreated{
		WorkspaceID: id, Name: "w", ProjectID: 1, AgentID: int(agent), UserID: 2, Template: "default",
		ActualState: events.ActualStateCreationRequested, DesiredState: events.DesiredStateRunning, DesiredRevision: 1,
	})
}

func (b *builder) desires(revision int, from, to events.DesiredState, cause events.DesiredStateCause) *builder {
	b.t.Helper()
	return b.published(events.TypeWorkspaceDesiredStateChanged, "desired_state_changed",
		events.WorkspaceDesiredStateChanged{
			WorkspaceID:     id,
			Name:            "w",
			ProjectID:       1,
			AgentID:         int(agent),
			DesiredRevision: revision,
			From:            from,
			To:              to,
			Cause:           &cause,
		})
}

// became adds a state change of a workspace that shall run, without a reason. Only failed states need one.
func (b *builder) became(from, to events.ActualState, unexpected bool) *builder {
	b.t.Helper()
	return b.becameWith(events.DesiredStateRunning, from, to, unexpected)
}

// becameWith is became for another desired state.
func (b *builder) becameWith(desired events.DesiredState, from, to events.ActualState, unexpected bool) *builder {
	b.t.Helper()
	return b.published(events.TypeWorkspaceStateChanged, "state_changed", events.WorkspaceStateChanged{
		WorkspaceID:  id,
		Name:         "w",
		ProjectID:    1,
		AgentID:      int(agent),
		From:         from,
		To:           to,
		DesiredState: desired,
		Unexpected:   unexpected,
	})
}

func (b *builder) drifted(revision int) *builder {
	b.t.Helper()
	return b.published(events.TypeWorkspaceDrifted, "drifted", events.WorkspaceDrifted{
		WorkspaceID: id, Name: "w", ProjectID: 1, AgentID: int(agent), DesiredRevision: revision, Message: "changed",
	})
}

func (b *builder) desired(revision, replicas int) *builder {
	b.t.Helper()
	source := event.ServiceSource(string(cell), "state")
	return b.add(cell.Desired(agent, id), source, events.TypeDesiredWorkspace, events.DesiredWorkspace{
		WorkspaceID: id, Name: "w", Namespace: "ws-6-w", DesiredRevision: revision, Target: events.DesiredTargetRunning,
		Manifests: []map[string]any{{"kind": "Deployment", "spec": map[string]any{"replicas": replicas}}},
	})
}

func (b *builder) applied(revision int) *builder {
	b.t.Helper()
	source := event.AgentSource(string(cell), agent, "dispatcher")
	return b.add(cell.Applied(agent, id), source, events.TypeApplied, events.Applied{
		WorkspaceID: id, DesiredRevision: revision, ObservedAt: time.UnixMilli(1).UTC(), Objects: []events.ObjectReference{},
	})
}

func (b *builder) observed(uid string, generation int) *builder {
	b.t.Helper()
	return b.deployment(generation, events.ObjectMeta{WorkspaceID: id, UID: uid})
}

// gone is a Deployment that is being deleted.
func (b *builder) gone(uid string, generation int) {
	b.t.Helper()
	at := time.UnixMilli(1).UTC()
	b.deployment(generation, events.ObjectMeta{WorkspaceID: id, UID: uid, DeletedAt: &at})
}

func (b *builder) deployment(generation int, object events.ObjectMeta) *builder {
	b.t.Helper()
	subject, source := cell.Observed(agent, "deployment", "ws-6-w", "w"), event.AgentSource(string(cell), agent, "watcher")
	return b.add(subject, source, events.TypeObservedWorkload,
		events.ObservedWorkload{Kind: events.WorkloadKindDeployment, Generation: generation, Object: object})
}

// faulty is a history with a fault, and words of the expected finding.
type faulty struct {
	name  string
	write func(b *builder)
	found string // empty: nothing
}

// requireFound checks each history.
func requireFound(t *testing.T, cases []faulty, check func(all []history.Record) history.Findings) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := &builder{t: t}
			c.write(b)
			requireOne(t, c.found, check(b.all))
		})
	}
}

// requireOne checks that the sentence, and no other, is found.
func requireOne(t *testing.T, words string, found history.Findings) {
	t.Helper()
	if words == "" {
		require.Empty(t, found)
		return
	}
	require.Len(t, found, 1)
	require.Contains(t, found[0], words)
}
