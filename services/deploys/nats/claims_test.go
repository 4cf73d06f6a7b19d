package nats_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/directory"
	"lockstep.internal/schemas/gen/events"
)

// register is a directory in which every agent is of project 1, but for those of others and those that are not in it.
type register struct {
	mu        sync.Mutex
	projects  map[int64]int64
	unknown   map[int64]bool
	following bool
	changed   chan struct{}
	asked     map[int64]int
}

func newRegister() *register {
	return &register{projects: map[int64]int64{}, unknown: map[int64]bool{}, following: true, changed: make(chan struct{}), asked: map[int64]int{}}
}

func (r *register) Agent(id int64) (directory.Agent, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked[id]++
	if r.unknown[id] {
		return directory.Agent{}, false
	}
	project := int64(1)
	if of := r.projects[id]; of != 0 {
		project = of
	}
	return directory.Agent{ID: id, ProjectID: project}, true
}

func (r *register) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

func (r *register) Following() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.following
}

// change changes the directory.
func (r *register) change(how func(*register)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	how(r)
	close(r.changed)
	r.changed = make(chan struct{})
}

// awaitAsked returns when the directory was asked for an agent so often.
func (w *world) awaitAsked(id int64, times int) {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		w.agents.mu.Lock()
		defer w.agents.mu.Unlock()
		return w.agents.asked[id] >= times
	}, soon, time.Millisecond)
}

// as is another agent in the cluster of the first.
func (a *agent) as(id, project int64) *agent {
	a.w.agents.change(func(r *register) { r.projects[id] = project })
	other := *a
	other.id = id
	return &other
}

// reject tells that a Deployment could not be told of.
func (a *agent) reject(p *app) {
	a.w.t.Helper()
	a.say(cell.ObservedRejected(a.id), events.TypeObservedRejected, map[string]any{
		"kind": "deployment", "message": "is too large", "reason": "too_large", "scope": "workloads", "object": p.meta(p.name, p.uid, a.next(), a.now),
	})
}

// of is the same Deployment as another agent tells of it.
func (p *app) of(a *agent) *app {
	same := *p
	same.a = a
	return &same
}

func TestAnImpostorChangesNothingAndHoldsUpNobody(t *testing.T) {
	t.Parallel()
	for name, lie := range map[string]func(impostor *agent, p *app){
		"an observation": func(_ *agent, p *app) { p.roll("evil:1") },
		"an end": func(_ *agent, p *app) {
			p.a.pass(time.Second)
			p.updated, p.current, p.rv = 0, 0, p.a.next()
			p.delete()
		},
		"a revision": func(a *agent, p *app) {
			p.tellSet(&set{uid: "rs-evil", hash: "evil", revision: 9, rv: a.next(), created: a.now})
		},
		"a full resync that lacks everything":    func(a *agent, _ *app) { a.list("s") },
		"a full resync that has something else":  func(a *agent, _ *app) { a.list("s", a.app("other")) },
		"a full resync of a store that is older": func(a *agent, _ *app) { a.rv = new(1); a.pass(time.Hour); a.list("s"); a.pass(time.Hour); a.list("s") },
		"a new workload":                         func(a *agent, _ *app) { a.app("planted").roll("evil:1") },
		"a rejected object":                      func(a *agent, p *app) { a.reject(p) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			a := w.agent(7)
			web := a.app("web")
			a.list("s", web)
			web.roll("i:2")
			w.take()
			before, then := ids(w.told()), rows(t, w.pool)

			impostor := a.as(8, 2)
			impostor.rv = new(*a.rv + 1000)
			impostor.pass(time.Minute)
			from := w.said()
			lie(impostor, web.of(impostor))
			lies := int(w.said() - from)
			require.NotZero(t, lies)
			w.take(2)
			require.Equal(t, before, ids(w.told()))
			require.Equal(t, then, rows(t, w.pool))
			dead := w.dead()
			require.Len(t, dead, lies)
			for _, reason := range dead {
				require.Contains(t, reason, `cluster "cluster-7": is of project 1, whose agent reported it first; agent 8 is of project 2`)
			}

			// The first one goes on, in the same batch as the impostor too, and is rebuilt as it is.
			web.finish()
			lie(impostor, web.of(impostor))
			a.tick()
			w.take()
			require.Equal(t, []string{"started", "completed"}, names(w.once(), "web")[:2])
			require.Empty(t, w.rebuild(true, 0).Differences)
			require.Empty(t, w.rebuild(false, 3).Differences)
		})
	}
}

// An agent that shares a cluster with another project's for its workspaces has a clock too, and claims nothing by it.
func TestAForeignClockCountsForNothing(t *testing.T) {
	t.Parallel()
	w := setup(t)
	a := w.agent(7)
	guest := a.as(8, 2)
	guest.tick()
	web := a.app("web")
	a.list("s", web)
	web.deadline = nil
	web.roll("i:2")
	w.take()
	for range 10 {
		guest.pass(time.Hour)
		guest.tick()
	}
	w.take()
	require.Equal(t, []string{"started"}, names(w.once(), "web"), "its time has not come by its own agent's clock")
	require.Empty(t, w.dead())
	require.Empty(t, w.rebuild(true, 0).Differences)
}

// Who has told what is noted likewise in whatever batches it comes, and whatever else of a batch is refused.
func TestAReporterIsNotedInWhateverBatches(t *testing.T) {
	t.Parallel()
	noted := map[int][]string{}
	for _, batch := range []int{1, 0} {
		w := setup(t)
		a := w.agent(7)
		web := a.app("web")
		a.list("s", web)
		guest := a.as(8, 2)
		guest.tick()
		web.of(guest).roll("evil:1")
		w.take(batch)
		require.Len(t, w.dead(), 2)
		noted[batch] = rows(t, w.pool)["reporters"]
		require.Len(t, noted[batch], 2, "a clock is something told")
	}
	require.Equal(t, noted[1], noted[0])
}

func TestAgentsOfOneProjectServeOneCluster(t *testing.T) {
	t.Parallel()
	w := setup(t)
	a := w.agent(7)
	colleague := a.as(9, 1)
	web := a.app("web")
	a.list("s", web)
	colleague.list("s", web.of(colleague))
	web.roll("i:2")
	theirs := web.of(colleague)
	theirs.tell()
	theirs.finish()
	w.take()
	require.Empty(t, w.dead())
	require.Equal(t, []string{"started", "completed"}, names(w.once(), "web")[:2])
	require.Empty(t, w.rebuild(true, 0).Differences)
}

func TestAClusterStaysItsProjectsWhateverTheReaderForgets(t *testing.T) {
	t.Parallel()
	w := setup(t)
	a := w.agent(7)
	web := a.app("web")
	a.list("s", web)
	w.take()
	cut := w.said()
	impostor := a.as(8, 2)
	impostor.app("planted").roll("evil:1")
	w.take()
	require.Len(t, w.dead(), 2)
	before := rows(t, w.pool)
	// The stream has dropped what the claim was made by: what comes first now is the impostor's.
	stream, err := w.js.Stream(t.Context(), "OBSERVED")
	require.NoError(t, err)
	require.NoError(t, stream.Purge(t.Context(), purgeUpTo(cut)))
	w.rebuild(false, 0)
	require.Equal(t, before, rows(t, w.pool))
	require.Empty(t, names(w.once(), "planted"))
	impostor.app("planted").finish()
	w.take()
	require.Len(t, w.dead(), 3)
}

func TestAnAgentThatTheDirectoryDoesNotKnowYetIsWaitedFor(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.agents.change(func(r *register) { r.unknown[7] = true })
	a := w.agent(7)
	web := a.app("web")
	a.list("s", web)
	web.roll("i:2")
	i := w.ingest(0)
	i.Patience = time.Hour
	stop := w.run(i)
	w.awaitAsked(7, 1)
	w.agents.change(func(r *register) { delete(r.unknown, 7) })
	w.taken()
	stop()
	require.Empty(t, w.dead())
	require.Equal(t, []string{"started"}, names(w.once(), "web"))
}

func TestAnAgentThatTheDirectoryNeverTellsOfHoldsUpNobodyForGood(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.agents.change(func(r *register) { r.unknown[8] = true })
	a, ghost := w.agent(7), w.agent(8)
	web, haunted := a.app("web"), ghost.app("haunted")
	a.list("s", web)
	haunted.tell()
	web.roll("i:2")
	i := w.ingest(0)
	i.Patience = time.Millisecond
	stop := w.run(i)
	w.taken()
	require.Equal(t, []string{"agent 8 is not in the directory: once it is, the message can be retried"}, w.dead())
	// It comes to be known: from here on it counts, in a rebuild too.
	w.agents.change(func(r *register) { delete(r.unknown, 8) })
	haunted.roll("i:2")
	w.taken()
	stop()
	require.Equal(t, []string{"started"}, names(w.once(), "web"))
	require.Len(t, w.dead(), 1)
	require.Empty(t, w.rebuild(true, 0).Differences)
}

// While the directory cannot be read nobody is called a stranger, however long that lasts.
func TestNobodyIsAStrangerWhileTheDirectoryIsAway(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.agents.change(func(r *register) { r.unknown[7], r.following = true, false })
	a := w.agent(7)
	web := a.app("web")
	a.list("s", web)
	web.roll("i:2")
	i := w.ingest(0)
	i.Patience = time.Nanosecond
	stop := w.run(i)
	w.awaitAsked(7, 3)
	require.Empty(t, w.dead())
	w.agents.change(func(r *register) { delete(r.unknown, 7) })
	w.taken()
	stop()
	require.Empty(t, w.dead())
	require.Equal(t, []string{"started"}, names(w.once(), "web"))
}
