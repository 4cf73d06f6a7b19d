package nats_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/directory"
	"lockstep.internal/schemas/gen/events"
)

// fakeDirectory has all agents. They are in project 1, except those in projects and unknown.
type fakeDirectory struct {
	mu       sync.Mutex
	projects map[int64]int64
	unknown  map[int64]bool
	upToDate bool
	changed  chan struct{}
	lookups  map[int64]int
}

func newFakeDirectory() *fakeDirectory {
	return &fakeDirectory{
		projects: map[int64]int64{}, unknown: map[int64]bool{}, upToDate: true, changed: make(chan struct{}),
		lookups: map[int64]int{},
	}
}

func (r *fakeDirectory) Agent(id int64) (directory.Agent, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lookups[id]++
	if r.unknown[id] {
		return directory.Agent{}, false
	}
	project := int64(1)
	if configured := r.projects[id]; configured != 0 {
		project = configured
	}
	return directory.Agent{ID: id, ProjectID: project}, true
}

func (r *fakeDirectory) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

func (r *fakeDirectory) UpToDate() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.upToDate
}

// update changes the directory.
func (r *fakeDirectory) update(change func(*fakeDirectory)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(r)
	close(r.changed)
	r.changed = make(chan struct{})
}

// awaitLookups waits until an agent was looked up at least so many times.
func (w *fixture) awaitLookups(id int64, times int) {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		w.agents.mu.Lock()
		defer w.agents.mu.Unlock()
		return w.agents.lookups[id] >= times
	}, soon, time.Millisecond)
}

// as returns another agent in the same cluster.
func (a *agent) as(id, project int64) *agent {
	a.w.agents.update(func(r *fakeDirectory) { r.projects[id] = project })
	other := *a
	other.id = id
	return &other
}

// reject publishes that a Deployment was too large.
func (a *agent) reject(p *app) {
	a.w.t.Helper()
	a.publish(cell.ObservedRejected(a.id), events.TypeObservedRejected, map[string]any{
		"kind": "deployment", "message": "is too large", "reason": "too_large", "scope": "workloads",
		"object": p.meta(p.name, p.uid, a.next(), a.now),
	})
}

// observedBy returns the same Deployment as observed by another agent.
func (p *app) observedBy(a *agent) *app {
	same := *p
	same.a = a
	return &same
}

func TestForeignAgentChangesNothing(t *testing.T) {
	t.Parallel()
	for name, send := range map[string]func(foreign *agent, p *app){
		"an observation": func(_ *agent, p *app) { p.roll("evil:1") },
		"an end": func(_ *agent, p *app) {
			p.a.advance(time.Second)
			p.updated, p.current, p.rv = 0, 0, p.a.next()
			p.delete()
		},
		"a revision": func(a *agent, p *app) {
			p.sendSet(&set{uid: "rs-evil", hash: "evil", revision: 9, rv: a.next(), created: a.now})
		},
		"an empty full resync":                func(a *agent, _ *app) { a.list("s") },
		"a full resync with another workload": func(a *agent, _ *app) { a.list("s", a.app("other")) },
		"a full resync of a restored cluster": func(a *agent, _ *app) {
			a.rv = new(1)
			a.advance(time.Hour)
			a.list("s")
			a.advance(time.Hour)
			a.list("s")
		},
		"a new workload":    func(a *agent, _ *app) { a.app("planted").roll("evil:1") },
		"a rejected object": func(a *agent, p *app) { a.reject(p) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			a := w.agent(7)
			web := a.app("web")
			a.list("s", web)
			web.roll("i:2")
			w.process()
			before, then := ids(w.published()), rows(t, w.pool)

			foreign := a.as(8, 2)
			foreign.rv = new(*a.rv + 1000)
			foreign.advance(time.Minute)
			from := w.lastSequence()
			send(foreign, web.observedBy(foreign))
			sent := int(w.lastSequence() - from)
			require.NotZero(t, sent)
			w.process(2)
			require.Equal(t, before, ids(w.published()))
			require.Equal(t, then, rows(t, w.pool))
			dead := w.deadLetters()
			require.Len(t, dead, sent)
			for _, reason := range dead {
				require.Contains(t, reason,
					`cluster "cluster-7": belongs to project 1, whose agent reported it first; agent 8 belongs to project 2`)
			}

			// The owner continues, also in one batch with the foreign agent, and a rebuild agrees.
			web.finish()
			send(foreign, web.observedBy(foreign))
			a.tick()
			w.process()
			require.Equal(t, []string{"started", "completed"}, names(w.checkOnce(), "web")[:2])
			require.Empty(t, w.rebuild(true, 0).Differences)
			require.Empty(t, w.rebuild(false, 3).Differences)
		})
	}
}

// An agent of another project may share the cluster for its workspaces. Its ticks claim nothing.
func TestForeignTickIsIgnored(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a := w.agent(7)
	guest := a.as(8, 2)
	guest.tick()
	web := a.app("web")
	a.list("s", web)
	web.deadline = nil
	web.roll("i:2")
	w.process()
	for range 10 {
		guest.advance(time.Hour)
		guest.tick()
	}
	w.process()
	require.Equal(t, []string{"started"}, names(w.checkOnce(), "web"),
		"the clock of the owning agent has not reached the deadline")
	require.Empty(t, w.deadLetters())
	require.Empty(t, w.rebuild(true, 0).Differences)
}

func TestReporterIsStoredInAnyBatchSize(t *testing.T) {
	t.Parallel()
	reporters := map[int][]string{}
	for _, batch := range []int{1, 0} {
		w := newFixture(t)
		a := w.agent(7)
		web := a.app("web")
		a.list("s", web)
		guest := a.as(8, 2)
		guest.tick()
		web.observedBy(guest).roll("evil:1")
		w.process(batch)
		require.Len(t, w.deadLetters(), 2)
		reporters[batch] = rows(t, w.pool)["reporters"]
		require.Len(t, reporters[batch], 2, "the sender of a tick is a reporter")
	}
	require.Equal(t, reporters[1], reporters[0])
}

func TestAgentsOfOneProjectShareCluster(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a := w.agent(7)
	second := a.as(9, 1)
	web := a.app("web")
	a.list("s", web)
	second.list("s", web.observedBy(second))
	web.roll("i:2")
	theirs := web.observedBy(second)
	theirs.send()
	theirs.finish()
	w.process()
	require.Empty(t, w.deadLetters())
	require.Equal(t, []string{"started", "completed"}, names(w.checkOnce(), "web")[:2])
	require.Empty(t, w.rebuild(true, 0).Differences)
}

func TestClaimSurvivesTruncatedStream(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a := w.agent(7)
	web := a.app("web")
	a.list("s", web)
	w.process()
	dropped := w.lastSequence()
	foreign := a.as(8, 2)
	foreign.app("planted").roll("evil:1")
	w.process()
	require.Len(t, w.deadLetters(), 2)
	before := rows(t, w.pool)
	// The stream has dropped the message with the claim. Its first message is now by the foreign agent.
	stream, err := w.js.Stream(t.Context(), "OBSERVED")
	require.NoError(t, err)
	require.NoError(t, stream.Purge(t.Context(), purgeUpTo(dropped)))
	w.rebuild(false, 0)
	require.Equal(t, before, rows(t, w.pool))
	require.Empty(t, names(w.checkOnce(), "planted"))
	foreign.app("planted").finish()
	w.process()
	require.Len(t, w.deadLetters(), 3)
}

func TestReaderWaitsForUnknownAgent(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.agents.update(func(r *fakeDirectory) { r.unknown[7] = true })
	a := w.agent(7)
	web := a.app("web")
	a.list("s", web)
	web.roll("i:2")
	reader := w.reader(0)
	reader.DirectoryTimeout = time.Hour
	stop := w.run(reader)
	w.awaitLookups(7, 1)
	w.agents.update(func(r *fakeDirectory) { delete(r.unknown, 7) })
	w.awaitProcessed()
	stop()
	require.Empty(t, w.deadLetters())
	require.Equal(t, []string{"started"}, names(w.checkOnce(), "web"))
}

func TestUnknownAgentIsDeadLetteredAfterTimeout(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.agents.update(func(r *fakeDirectory) { r.unknown[8] = true })
	a, unknown := w.agent(7), w.agent(8)
	web, late := a.app("web"), unknown.app("late")
	a.list("s", web)
	late.send()
	web.roll("i:2")
	reader := w.reader(0)
	reader.DirectoryTimeout = time.Millisecond
	stop := w.run(reader)
	w.awaitProcessed()
	require.Equal(t, []string{"agent 8: not in the directory; retry the message once the agent is registered"},
		w.deadLetters())
	// Once the agent is known, its messages are processed, also in a rebuild.
	w.agents.update(func(r *fakeDirectory) { delete(r.unknown, 8) })
	late.roll("i:2")
	w.awaitProcessed()
	stop()
	require.Equal(t, []string{"started"}, names(w.checkOnce(), "web"))
	require.Len(t, w.deadLetters(), 1)
	require.Empty(t, w.rebuild(true, 0).Differences)
}

func TestNoMessageIsRejectedWhileDirectoryIsIncomplete(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.agents.update(func(r *fakeDirectory) { r.unknown[7], r.upToDate = true, false })
	a := w.agent(7)
	web := a.app("web")
	a.list("s", web)
	web.roll("i:2")
	reader := w.reader(0)
	reader.DirectoryTimeout = time.Nanosecond
	stop := w.run(reader)
	w.awaitLookups(7, 3)
	require.Empty(t, w.deadLetters())
	w.agents.update(func(r *fakeDirectory) { delete(r.unknown, 7) })
	w.awaitProcessed()
	stop()
	require.Empty(t, w.deadLetters())
	require.Equal(t, []string{"started"}, names(w.checkOnce(), "web"))
}
