package detection_test

import (
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
	"lockstep.internal/tools/detection/played"
)

// contested is a stretch in which agent 2, of another project, says of the cluster of agent 1 what
// is not so, until it is released.
type contested struct {
	messages []*nats.Msg
	// refused are positions of what agent 2 said while it was not its project's, clocks left out,
	// and released that of the release.
	refused  map[int]bool
	released int
}

func contest(t *testing.T) contested {
	t.Helper()
	c := contested{refused: map[int]bool{}}
	lying := false
	now := time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC)
	owner := &played.Watcher{
		Cell: cell,
		Now:  now,
		Say:  func(m *nats.Msg) error { c.messages = append(c.messages, m); return nil },
	}
	other := &played.Watcher{Cell: cell, Agent: 2, Say: func(m *nats.Msg) error {
		c.messages = append(c.messages, m)
		if lying && m.Subject != cell.ObservedTick(2) {
			c.refused[len(c.messages)] = true
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
	lying = true
	other.Now, other.Versions = owner.Now, owner.Versions+1000
	lie := web.As(other)
	do(
		other.Tick,
		func() error { return other.List("forged") },
		func() error { return lie.Roll("evil") },
		lie.Finish,
		other.Tick,
	)
	do(web.Finish, owner.Tick, func() error { return web.Roll("3") }, web.Step)
	lying = false
	e, err := event.New(event.Attributes{
		Type:    events.TypeObservedClusterReleased,
		Source:  event.ServiceSource(string(cell), "deploys"),
		Subject: played.Cluster,
		ID:      "r",
		Time:    owner.Now,
	}, events.ObservedClusterReleased{ClusterUID: played.Cluster, ProjectID: 10, Since: 1, ToProjectID: 20, ReleasedAt: owner.Now})
	require.NoError(t, err)
	released, err := event.Encode(e, cell.ObservedClusterReleased(played.Cluster))
	require.NoError(t, err)
	c.messages = append(c.messages, released)
	c.released = len(c.messages)
	other.Now, other.Versions = owner.Now, owner.Versions
	theirs := web.As(other)
	do(
		func() error { return other.List("r2", theirs) },
		theirs.Finish,
		func() error { return theirs.Roll("4") },
		theirs.Finish,
		other.Tick,
	)
	return c
}

func (c contested) through(t *testing.T, d *detection.Detector) []string {
	t.Helper()
	var facts []events.DeployFact
	for i, m := range c.messages {
		more, err := d.Take(uint64(i+1), m.Subject, m.Header, m.Data)
		if c.refused[i+1] {
			_, is := errors.AsType[*ownership.ForeignError](err)
			require.True(t, is, "%d: %v", i+1, err)
			require.Empty(t, more)
			continue
		}
		require.NoError(t, err)
		facts = append(facts, more...)
	}
	return names(facts)
}

func TestReportsOfForeignClustersAreRejected(t *testing.T) {
	t.Parallel()
	c := contest(t)
	require.Greater(t, len(c.refused), 4)
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
	t.Run("by what follows from the stretch", func(t *testing.T) {
		t.Parallel()
		d := detection.New(cell, environment.Rules{})
		d.ResolveProjects(func(agent int64) (int64, bool) { return agent * 10, true })
		require.Equal(t, want, c.through(t, d))
	})
	t.Run("by what was decided", func(t *testing.T) {
		t.Parallel()
		d := detection.New(cell, environment.Rules{})
		d.UseDecisions(
			false,
			[]ownership.Reporter{{AgentID: 1, ProjectID: 10, Since: 1}, {AgentID: 2, ProjectID: 20, Since: 1}},
			[]ownership.Claim{
				{
					ClusterUID: played.Cluster,
					Since:      1,
					ProjectID:  10,
					AgentID:    1,
				},
				{ClusterUID: played.Cluster, Since: uint64(c.released), ProjectID: 20, UserID: 1},
			},
		)
		require.Equal(t, want, c.through(t, d))
	})
	t.Run("of one project all are believed", func(t *testing.T) {
		t.Parallel()
		c := c
		c.refused = nil
		require.NotEqual(t, want, c.through(t, detection.New(cell, environment.Rules{})))
	})
}

func TestUnknownAgentIsRejected(t *testing.T) {
	t.Parallel()
	m := history(t)[0]
	d := detection.New(cell, environment.Rules{})
	d.ResolveProjects(func(int64) (int64, bool) { return 0, false })
	_, err := d.Take(1, m.Subject, m.Header, m.Data)
	require.ErrorIs(t, err, ingest.UnknownAgentError{AgentID: 1})
	d = detection.New(cell, environment.Rules{})
	d.UseDecisions(false, []ownership.Reporter{{AgentID: 1, ProjectID: 10, Since: 2}}, nil)
	_, err = d.Take(1, m.Subject, m.Header, m.Data)
	require.ErrorIs(t, err, ingest.UnknownAgentError{AgentID: 1}, "the service did not know it then")
	_, err = d.Take(2, m.Subject, m.Header, m.Data)
	require.NoError(t, err)
}
