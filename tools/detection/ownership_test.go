package detection_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/services/deploys/ingest"
	"lockstep.internal/services/deploys/ownership"
	"lockstep.internal/tools/detection"
	"lockstep.internal/tools/detection/watchertest"
)

// forgery is a recording in which agent 2, of another project, reports forged observations of the cluster of agent 1,
// until the cluster is released to its project.
type forgery struct {
	messages []*nats.Msg
	// forged are the sequences of the forged observations, without ticks.
	forged map[int]bool
	// released is the sequence of the release.
	released int
}

// forgedTick is the time of the last forged tick, later than everything else.
var forgedTick = time.Date(2026, 3, 5, 0, 0, 0, 0, time.UTC)

func newForgery(t *testing.T) forgery {
	t.Helper()
	f := forgery{forged: map[int]bool{}}
	forging := false
	owner := &watchertest.Watcher{
		Cell:    cell,
		Now:     time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC),
		Publish: func(m *nats.Msg) error { f.messages = append(f.messages, m); return nil },
	}
	other := &watchertest.Watcher{Cell: cell, Agent: 2, Publish: func(m *nats.Msg) error {
		f.messages = append(f.messages, m)
		if forging && m.Subject != cell.ObservedTick(2) {
			f.forged[len(f.messages)] = true
		}
		return nil
	}}
	do := func(steps ...func() error) {
		for _, step := range steps {
			require.NoError(t, step())
		}
	}
	web := owner.Deployment("web", nil)
	do(func() error { return owner.List("r1", web) }, func() error { return web.Roll("2") }, web.Step)
	forging = true
	other.Now, other.Versions = owner.Now, owner.Versions+1000
	forged := web.As(other)
	list, roll := func() error { return other.List("forged") }, func() error { return forged.Roll("evil") }
	do(other.Tick, list, roll, forged.Finish)
	other.Now = forgedTick
	do(other.Tick)
	do(web.Finish, owner.Tick, func() error { return web.Roll("3") }, web.Step)
	forging = false
	e, err := event.New(event.Attributes{
		Type: events.TypeObservedClusterReleased, Source: event.ServiceSource(string(cell), "deploys"),
		Subject: watchertest.Cluster, ID: "r", Time: owner.Now,
	}, events.ObservedClusterReleased{
		ClusterUID: watchertest.Cluster, ProjectID: 10, Since: 1, ToProjectID: 20, ReleasedAt: owner.Now,
	})
	require.NoError(t, err)
	released, err := event.Encode(e, cell.ObservedClusterReleased(watchertest.Cluster))
	require.NoError(t, err)
	f.messages = append(f.messages, released)
	f.released = len(f.messages)
	other.Now, other.Versions = owner.Now, owner.Versions
	moved := web.As(other)
	do(func() error { return other.List("r2", moved) }, moved.Finish, func() error { return moved.Roll("4") },
		moved.Finish, other.Tick)
	return f
}

// detect passes the messages one by one and requires that exactly the forged observations are rejected.
func (f forgery) detect(t *testing.T, d *detection.Detector) []events.DeployFact {
	t.Helper()
	var facts []events.DeployFact
	for i, m := range f.messages {
		more, err := d.Take(uint64(i+1), m.Subject, m.Header, m.Data)
		if f.forged[i+1] {
			_, is := errors.AsType[*ownership.ForeignError](err)
			require.True(t, is, "%d: %v", i+1, err)
			require.Empty(t, more)
			continue
		}
		require.NoError(t, err)
		facts = append(facts, more...)
	}
	return facts
}

// decide makes the detector resolve projects: those of agents 1 and 2 are 10 and 20.
func decide(d *detection.Detector) {
	d.ResolveProjects(func(_ context.Context, agent int64) (int64, error) { return agent * 10, nil })
}

func TestReportsOfForeignClustersAreRejected(t *testing.T) {
	t.Parallel()
	f := newForgery(t)
	require.Greater(t, len(f.forged), 4)
	want := []string{
		"web started",
		"web progressed",
		"web completed",
		"web drained",
		"web started",
		"web progressed",
		"web gap",
		"web unknown",
		"web started",
		"web completed",
		"web drained",
	}
	requireNotCovered := func(t *testing.T, d *detection.Detector, facts []events.DeployFact) {
		t.Helper()
		forged := facts[0]
		forged.ObservedAt = forgedTick
		require.False(t, d.Covers(&forged), "the time of a forged tick does not count")
	}
	t.Run("resolved projects", func(t *testing.T) {
		t.Parallel()
		d := detection.New(cell, environment.Rules{})
		decide(d)
		facts := f.detect(t, d)
		require.Equal(t, want, names(facts))
		requireNotCovered(t, d, facts)
	})
	t.Run("stored decisions", func(t *testing.T) {
		t.Parallel()
		d := detection.New(cell, environment.Rules{})
		d.UseDecisions(
			false,
			[]ownership.Reporter{{AgentID: 1, ProjectID: 10, Since: 1}, {AgentID: 2, ProjectID: 20, Since: 1}},
			[]ownership.Claim{
				{ClusterUID: watchertest.Cluster, Since: 1, ProjectID: 10, AgentID: 1},
				{ClusterUID: watchertest.Cluster, Since: uint64(f.released), ProjectID: 20, UserID: 1},
			},
		)
		facts := f.detect(t, d)
		require.Equal(t, want, names(facts))
		requireNotCovered(t, d, facts)
	})
	t.Run("one project", func(t *testing.T) {
		t.Parallel()
		f := f
		f.forged = nil
		require.NotEqual(t, want, names(f.detect(t, detection.New(cell, environment.Rules{}))))
	})
}

func TestUnknownAgentIsRejected(t *testing.T) {
	t.Parallel()
	m := recorded(t)[0]
	d := detection.New(cell, environment.Rules{})
	d.ResolveProjects(func(_ context.Context, agent int64) (int64, error) {
		return 0, ingest.UnknownAgentError{AgentID: agent}
	})
	_, err := d.Take(1, m.Subject, m.Header, m.Data)
	require.ErrorIs(t, err, ingest.UnknownAgentError{AgentID: 1})
	d = detection.New(cell, environment.Rules{})
	d.UseDecisions(false, []ownership.Reporter{{AgentID: 1, ProjectID: 10, Since: 2}}, nil)
	_, err = d.Take(1, m.Subject, m.Header, m.Data)
	require.ErrorIs(t, err, ingest.UnknownAgentError{AgentID: 1}, "the service did not know it then")
	_, err = d.Take(2, m.Subject, m.Header, m.Data)
	require.NoError(t, err)
}
