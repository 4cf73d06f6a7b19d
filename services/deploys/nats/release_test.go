package nats_test

import (
	"testing"
	"time"

	"lockstep.internal/libs/readmodel"

	"lockstep.internal/services/deploys/rebuild"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/services/deploys/nats"
	"lockstep.internal/services/deploys/ownership"
	store "lockstep.internal/services/deploys/postgres"
)

// release releases the agent's cluster to a project.
func (a *agent) release(to int64) uint64 {
	a.w.t.Helper()
	found, err := (&store.Clusters{Pool: a.w.pool}).List(a.w.t.Context(), a.cluster)
	require.NoError(a.w.t, err)
	require.Len(a.w.t, found, 1)
	return a.releaseOf(found[0].Claim(), to)
}

func (a *agent) releaseOf(claim ownership.Claim, to int64) uint64 {
	a.w.t.Helper()
	a.advance(time.Second)
	at, err := (&nats.Releaser{JetStream: a.w.js, Cell: cell}).Release(a.w.t.Context(), claim, to, 1, "it has moved",
		a.now)
	require.NoError(a.w.t, err)
	return at
}

// successor returns an agent of another project in the same cluster, with a new watcher that observes the same apps.
func (a *agent) successor(id, project int64, apps ...*app) (*agent, []*app) {
	next := a.as(id, project)
	theirs := make([]*app, len(apps))
	for i, p := range apps {
		theirs[i] = p.observedBy(next)
		theirs[i].first = true
	}
	return next, theirs
}

// since returns the facts of a workload from an index on.
func since(facts []fact, from int, name string) []string { return names(facts[from:], name) }

func TestClusterMovesToAnotherProject(t *testing.T) {
	t.Parallel()
	for name, batch := range map[string]int{"in one batch": 0, "message by message": 1, "in batches of three": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			a := w.agent(7)
			web, inFlight, preview := a.app("web"), a.app("in-flight"), a.app("preview")
			preview.annotations = map[string]string{label: "pr-1", environment.AnnotationSize: "1"}
			a.list("s", web, inFlight, preview)
			web.roll("i:2")
			web.finish()
			preview.roll("i:2")
			preview.finish()
			inFlight.roll("i:2")
			inFlight.step()
			w.process(batch)
			before, stored := w.checkOnce(), rows(t, w.pool)["rollouts"]
			require.Equal(t, []string{"environment_started", "environment_ready"}, names(before, "pr-1"))

			// Messages of the next project are dead-lettered with the command for the administrator.
			b, theirs := a.successor(8, 2, web, inFlight, preview)
			b.list("s", theirs...)
			w.process(batch)
			dead := w.deadLetters()
			require.NotEmpty(t, dead)
			require.Contains(t, dead[0],
				"To move the cluster, an administrator runs: lockstep deploys clusters release cluster-7 --to 2")
			require.Equal(t, ids(before), ids(w.checkOnce()))

			released := b.release(2)
			// Messages of the previous project are dead-lettered from now on.
			a.now, a.rv = b.now, b.rv
			web.roll("i:3")
			b.list("s", theirs...)
			b.tick()
			w.process(batch)
			after := w.checkOnce()
			require.Equal(t, []string{"gap", "unknown"}, since(after, len(before), "in-flight"))
			require.Empty(t, since(after, len(before), "web"), "a release is not a rollout")
			require.Empty(t, since(after, len(before), "preview"))
			require.Empty(t, since(after, len(before), "pr-1"))
			ended := after[len(after)-1]
			require.Equal(t, events.CauseClusterReleased, ended.Gap.Cause)
			require.Equal(t, 7, ended.Workload.AgentID)
			require.Len(t, w.deadLetters(), len(dead)+2)
			require.Contains(t, w.deadLetters()[len(dead)],
				"belongs to project 2, to which an administrator assigned it; agent 7 belongs to project 1")

			// The history stays with the previous project.
			history := (&store.Rollouts{DB: w.pool})
			all, err := history.List(t.Context(), store.RolloutFilter{}, store.RolloutPage{Size: 100})
			require.NoError(t, err)
			require.Len(t, all, len(stored))
			for _, r := range all {
				require.EqualValues(t, 7, r.AgentID)
				require.NotEqual(t, "running", *r.State)
			}

			// New rollouts belong to the next project.
			theirs[1].finish()
			theirs[0].first = false
			theirs[0].roll("i:4")
			theirs[0].finish()
			for range 4 { // until the timeout of unknown revisions
				b.tick()
			}
			w.process(batch)
			require.Empty(t, since(w.checkOnce(), len(after), "in-flight"), "its rollout has ended")
			require.Equal(t, []string{"started", "completed"}, since(w.checkOnce(), len(after), "web")[:2])
			all, err = history.List(t.Context(), store.RolloutFilter{Agents: []int64{8}}, store.RolloutPage{Size: 100})
			require.NoError(t, err)
			require.Len(t, all, 1)

			clusters, err := (&store.Clusters{Pool: w.pool}).List(t.Context(), "")
			require.NoError(t, err)
			require.Len(t, clusters, 1)
			require.Equal(t, []int64{8}, clusters[0].Agents)
			require.EqualValues(t, 3, clusters[0].Workloads)
			require.Zero(t, clusters[0].Running)
			claim := clusters[0].Claim()
			require.Equal(t, []any{int64(2), int64(0), int64(1), "it has moved", released},
				[]any{claim.ProjectID, claim.AgentID, claim.UserID, claim.Reason, claim.Since})

			for _, size := range []int{0, 1, 7} {
				require.Empty(t, w.rebuild(true, size).Differences)
			}
			then := rows(t, w.pool)
			w.exec(`truncate workloads, facts, rollouts, agents, resyncs, resync_members, environments`)
			w.rebuild(false, 5)
			require.Equal(t, then, rows(t, w.pool), "from empty tables")
		})
	}
}

func TestReleasedClusterIsClaimedByNextReporter(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a := w.agent(7)
	web := a.app("web")
	a.list("s", web)
	web.roll("i:2")
	w.process()
	a.release(0)
	w.process()
	count := len(w.checkOnce())
	require.Equal(t, []string{"gap", "unknown"}, names(w.checkOnce(), "web")[1:])
	guest := a.as(9, 3)
	guest.tick() // claims nothing
	b, theirs := a.successor(8, 2, web)
	b.list("s", theirs...)
	guest.list("s", web.observedBy(guest))
	w.process()
	require.NotEmpty(t, w.deadLetters())
	for _, reason := range w.deadLetters() {
		require.Contains(t, reason, "belongs to project 2, whose agent reported it first; agent 9 belongs to project 3")
	}
	require.Len(t, w.checkOnce(), count)
	require.Empty(t, w.rebuild(true, 0).Differences)
	// The cluster returns to an agent with complete resyncs: it starts with a baseline.
	b.release(1)
	a.now, a.rv = b.now, b.rv
	created := a.app("created-meanwhile")
	created.first = true
	web.first = true
	a.list("s", web, created)
	a.tick()
	w.process()
	require.Len(t, w.checkOnce(), count, "a baseline has no facts")
	require.Empty(t, w.rebuild(true, 0).Differences)
}

func TestClaimIsReleasedOnce(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a := w.agent(7)
	web := a.app("web")
	a.list("s", web)
	w.process()
	claims, err := (&store.Clusters{Pool: w.pool}).List(t.Context(), a.cluster)
	require.NoError(t, err)
	first := claims[0].Claim()
	a.releaseOf(first, 2)
	a.releaseOf(first, 3)
	none := first
	none.ClusterUID = "unclaimed"
	a.releaseOf(none, 3)
	w.process()
	claims, err = (&store.Clusters{Pool: w.pool}).List(t.Context(), "")
	require.NoError(t, err)
	require.Len(t, claims, 1)
	require.Len(t, claims[0].Claims, 2)
	require.EqualValues(t, 2, claims[0].Claim().ProjectID)
	require.Empty(t, w.deadLetters())
	require.Empty(t, w.rebuild(true, 0).Differences)
	// Reading the stream again changes nothing.
	then := rows(t, w.pool)["claims"]
	w.exec(`update stream_cursors set sequence = 0, epoch = epoch + 1`)
	w.process()
	require.Equal(t, then, rows(t, w.pool)["claims"])
}

func TestInvalidReleaseIsDeadLettered(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a := w.agent(7)
	a.list("s", a.app("web"))
	w.process()
	release := events.ObservedClusterReleased{
		ClusterUID: a.cluster, ProjectID: 1, Since: 1, ToProjectID: 2, ReleasedAt: a.now,
	}
	a.publish(cell.ObservedClusterReleased(a.cluster), events.TypeObservedClusterReleased, release)
	a.publish(cell.ObservedClusterReleased("other"), events.TypeObservedClusterReleased, release)
	a.publish(cell.ObservedResync(7), events.TypeObservedClusterReleased, release)
	w.process()
	require.Len(t, w.deadLetters(), 3)
	claims, err := (&store.Clusters{Pool: w.pool}).List(t.Context(), a.cluster)
	require.NoError(t, err)
	require.Len(t, claims[0].Claims, 1)
}

func TestReleaseDuringRebuild(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a := w.agent(7)
	web := a.app("web")
	a.list("s", web)
	web.roll("i:2")
	stop := w.run(w.reader(0))
	w.awaitProcessed()
	var b *agent
	r := rebuild.New(w.reader(0), func(readmodel.Progress) error {
		if b != nil {
			return nil
		}
		var theirs []*app
		b, theirs = a.successor(8, 2, web)
		b.release(2)
		b.list("s", theirs...)
		w.awaitProcessed()
		return nil
	})
	out, err := r.Run(t.Context(), true)
	require.NoError(t, err)
	stop()
	require.Empty(t, out.Differences)
	require.NotNil(t, b)
	require.Equal(t, []string{"started", "gap", "unknown"}, names(w.checkOnce(), "web"))
}
