package nats_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/services/deploys/nats"
	store "lockstep.internal/services/deploys/postgres"
	"lockstep.internal/services/deploys/roster"
)

// release takes the agent's cluster from its project.
func (a *agent) release(to int64) uint64 {
	a.w.t.Helper()
	found, err := (&store.Clusters{Pool: a.w.pool}).List(a.w.t.Context(), a.cluster)
	require.NoError(a.w.t, err)
	require.Len(a.w.t, found, 1)
	return a.releaseOf(found[0].Claim(), to)
}

func (a *agent) releaseOf(claim roster.Claim, to int64) uint64 {
	a.w.t.Helper()
	a.pass(time.Second)
	at, err := (&nats.Releaser{JetStream: a.w.js, Cell: cell}).Release(a.w.t.Context(), claim, to, 1, "it has moved", a.now)
	require.NoError(a.w.t, err)
	return at
}

// succeeds another agent, of another project, in its cluster: a watcher that has seen nothing yet.
func (a *agent) succeeds(id, project int64, apps ...*app) (*agent, []*app) {
	next := a.as(id, project)
	theirs := make([]*app, len(apps))
	for i, p := range apps {
		theirs[i] = p.of(next)
		theirs[i].first = true
	}
	return next, theirs
}

// since are the names of the facts of a workload after so many.
func since(facts []fact, from int, name string) []string { return names(facts[from:], name) }

func TestAClusterMovesToAnotherProject(t *testing.T) {
	t.Parallel()
	for name, batch := range map[string]int{"in one batch": 0, "message by message": 1, "in batches of three": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			a := w.agent(7)
			web, flying, preview := a.app("web"), a.app("flying"), a.app("preview")
			preview.annotations = map[string]string{label: "pr-1", environment.AnnotationSize: "1"}
			a.list("s", web, flying, preview)
			web.roll("i:2")
			web.finish()
			preview.roll("i:2")
			preview.finish()
			flying.roll("i:2")
			flying.step()
			w.take(batch)
			before, ours := w.once(), rows(t, w.pool)["rollouts"]
			require.Equal(t, []string{"environment_started", "environment_ready"}, names(before, "pr-1"))

			// The agent of the next project is refused, and says what to do.
			b, theirs := a.succeeds(8, 2, web, flying, preview)
			b.list("s", theirs...)
			w.take(batch)
			dead := w.dead()
			require.NotEmpty(t, dead)
			require.Contains(t, dead[0], "If the cluster has moved there, an administrator runs: lockstep deploys clusters release cluster-7 --to 2")
			require.Equal(t, ids(before), ids(w.once()))

			released := b.release(2)
			// What its last project's agent says from here on is refused.
			a.now, a.rv = b.now, b.rv
			web.roll("i:3")
			b.list("s", theirs...)
			b.tick()
			w.take(batch)
			after := w.once()
			require.Equal(t, []string{"gap", "unknown"}, since(after, len(before), "flying"))
			require.Empty(t, since(after, len(before), "web"), "neither its leaving nor its coming is a deploy")
			require.Empty(t, since(after, len(before), "preview"))
			require.Empty(t, since(after, len(before), "pr-1"))
			ended := after[len(after)-1]
			require.Equal(t, events.CauseClusterReleased, ended.Gap.Cause)
			require.Equal(t, 7, ended.Workload.AgentID)
			require.Len(t, w.dead(), len(dead)+2)
			require.Contains(t, w.dead()[len(dead)], "is of project 2, which an administrator gave it to; agent 7 is of project 1")

			// The history stays with the project that it was.
			history := (&store.Rollouts{DB: w.pool})
			all, err := history.List(t.Context(), store.RolloutFilter{}, store.RolloutPage{Size: 100})
			require.NoError(t, err)
			require.Len(t, all, len(ours))
			for _, r := range all {
				require.EqualValues(t, 7, r.AgentID)
				require.NotEqual(t, "running", *r.State)
			}

			// From here on its rollouts are the next project's.
			theirs[1].finish()
			theirs[0].first = false
			theirs[0].roll("i:4")
			theirs[0].finish()
			for range 4 { // what was in flight is waited for, lest it is one that nobody has told of
				b.tick()
			}
			w.take(batch)
			require.Empty(t, since(w.once(), len(after), "flying"), "it has had its end")
			require.Equal(t, []string{"started", "completed"}, since(w.once(), len(after), "web")[:2])
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
			require.Equal(t, []any{int64(2), int64(0), int64(1), "it has moved", released}, []any{claim.ProjectID, claim.AgentID, claim.UserID, claim.Reason, claim.Since})

			for _, size := range []int{0, 1, 7} {
				require.Empty(t, w.rebuild(true, size).Differences)
			}
			then := rows(t, w.pool)
			w.exec(`truncate workloads, facts, rollouts, agents, resyncs, resync_members, environments`)
			w.rebuild(false, 5)
			require.Equal(t, then, rows(t, w.pool), "from nothing")
		})
	}
}

func TestAReleasedClusterIsTheNextOnesWhoReportsIt(t *testing.T) {
	t.Parallel()
	w := setup(t)
	a := w.agent(7)
	web := a.app("web")
	a.list("s", web)
	web.roll("i:2")
	w.take()
	a.release(0)
	w.take()
	told := len(w.once())
	require.Equal(t, []string{"gap", "unknown"}, names(w.once(), "web")[1:])
	guest := a.as(9, 3)
	guest.tick() // which claims nothing
	b, theirs := a.succeeds(8, 2, web)
	b.list("s", theirs...)
	guest.list("s", web.of(guest))
	w.take()
	require.NotEmpty(t, w.dead())
	for _, reason := range w.dead() {
		require.Contains(t, reason, "is of project 2, whose agent reported it first; agent 9 is of project 3")
	}
	require.Len(t, w.once(), told)
	require.Empty(t, w.rebuild(true, 0).Differences)
	// And back, to an agent that had listed everything before: it begins as one that has not.
	b.release(1)
	a.now, a.rv = b.now, b.rv
	made := a.app("made-meanwhile")
	made.first = true
	web.first = true
	a.list("s", web, made)
	a.tick()
	w.take()
	require.Len(t, w.once(), told, "a baseline is silent")
	require.Empty(t, w.rebuild(true, 0).Differences)
}

func TestOneClaimIsReleasedOnce(t *testing.T) {
	t.Parallel()
	w := setup(t)
	a := w.agent(7)
	web := a.app("web")
	a.list("s", web)
	w.take()
	claims, err := (&store.Clusters{Pool: w.pool}).List(t.Context(), a.cluster)
	require.NoError(t, err)
	first := claims[0].Claim()
	a.releaseOf(first, 2)
	a.releaseOf(first, 3)
	none := first
	none.ClusterUID = "nobodys"
	a.releaseOf(none, 3)
	w.take()
	claims, err = (&store.Clusters{Pool: w.pool}).List(t.Context(), "")
	require.NoError(t, err)
	require.Len(t, claims, 1)
	require.Len(t, claims[0].Claims, 2)
	require.EqualValues(t, 2, claims[0].Claim().ProjectID)
	require.Empty(t, w.dead())
	require.Empty(t, w.rebuild(true, 0).Differences)
	// A stream that is read from its start again says nothing new.
	then := rows(t, w.pool)["claims"]
	w.exec(`update stream_cursors set sequence = 0, epoch = epoch + 1`)
	w.take()
	require.Equal(t, then, rows(t, w.pool)["claims"])
}

// An agent cannot write there; whoever can is held to what the service says.
func TestWhatIsNoReleaseReleasesNothing(t *testing.T) {
	t.Parallel()
	w := setup(t)
	a := w.agent(7)
	a.list("s", a.app("web"))
	w.take()
	release := events.ObservedClusterReleased{ClusterUID: a.cluster, ProjectID: 1, Since: 1, ToProjectID: 2, ReleasedAt: a.now}
	a.say(cell.ObservedClusterReleased(a.cluster), events.TypeObservedClusterReleased, release)
	a.say(cell.ObservedClusterReleased("other"), events.TypeObservedClusterReleased, release)
	a.say(cell.ObservedResync(7), events.TypeObservedClusterReleased, release)
	w.take()
	require.Len(t, w.dead(), 3)
	claims, err := (&store.Clusters{Pool: w.pool}).List(t.Context(), a.cluster)
	require.NoError(t, err)
	require.Len(t, claims[0].Claims, 1)
}

// While a rebuild reads, a cluster goes to another project.
func TestAReleaseDuringARebuild(t *testing.T) {
	t.Parallel()
	w := setup(t)
	a := w.agent(7)
	web := a.app("web")
	a.list("s", web)
	web.roll("i:2")
	stop := w.run(w.ingest(0))
	w.taken()
	var b *agent
	r := &nats.Rebuild{Ingest: w.ingest(0), Told: func(uint64, uint64) error {
		if b != nil {
			return nil
		}
		var theirs []*app
		b, theirs = a.succeeds(8, 2, web)
		b.release(2)
		b.list("s", theirs...)
		w.taken()
		return nil
	}}
	out, err := r.Run(t.Context(), true)
	require.NoError(t, err)
	stop()
	require.Empty(t, out.Differences)
	require.NotNil(t, b)
	require.Equal(t, []string{"started", "gap", "unknown"}, names(w.once(), "web"))
}
