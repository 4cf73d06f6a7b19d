package nats_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/deadletter"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
)

func TestWhatCannotBeReadGoesToDeadAndHoldsUpNobody(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		send func(a *agent, p *app)
		says string
	}{
		"no JSON": {func(a *agent, p *app) { a.say(p.subject(), events.TypeObservedWorkload, json.RawMessage(`"x"`)) }, "data"},
		"another's subject": {func(a *agent, p *app) {
			a.say(cell.ObservedWorkload(7, "deployment", "shop", "other"), events.TypeObservedWorkload, p.observation())
		}, "does not belong"},
		"a kind that is none": {func(a *agent, p *app) {
			o := p.observation()
			o.Kind = "cronjob"
			a.say(p.subject(), events.TypeObservedWorkload, o)
		}, "is no kind of workload"},
		"no version": {func(a *agent, p *app) {
			o := p.observation()
			o.Object.ResourceVersion = "x"
			a.say(p.subject(), events.TypeObservedWorkload, o)
		}, "is no version"},
		"a zero byte": {func(a *agent, p *app) {
			o := p.observation()
			o.Object.Labels = map[string]string{"a": "\x00"}
			a.say(p.subject(), events.TypeObservedWorkload, o)
		}, "zero byte"},
		"a time that the database cannot keep": {func(a *agent, p *app) {
			o := p.observation()
			o.Conditions[0].LastUpdateTime = new(time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC))
			a.say(p.subject(), events.TypeObservedWorkload, o)
		}, "not of these days"},
		"a revision of the wrong kind": {func(a *agent, p *app) {
			a.say(p.subject(), events.TypeObservedWorkloadRevision, events.ObservedWorkloadRevision{
				Object: p.meta("x", "u", "5", a.now), Kind: events.WorkloadRevisionKindControllerrevision, Workload: p.name, WorkloadUID: p.uid,
			})
		}, "keeps no revisions"},
		"a tick on a workload's subject": {func(a *agent, p *app) {
			a.say(p.subject(), events.TypeObservedTick, events.ObservedTick{ClusterUID: a.cluster, ObservedAt: a.now})
		}, "a tick does not belong"},
		"a type of the future": {func(a *agent, p *app) { a.say(p.subject(), "dev.lockstep.observed.workload.v9", p.observation()) }, "is not known to this version"},
		"a begin without an id": {func(a *agent, _ *app) {
			a.say(cell.ObservedResync(7), events.TypeObservedResyncBegun, map[string]any{
				"resync_id": "", "cluster_uid": a.cluster, "cause": "start", "count": 1, "list_versions": []string{}, "observed_at": a.now, "scope": "workloads",
			})
		}, "resync_id"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			a := w.agent(7)
			web, bad := a.app("web"), a.app("bad")
			a.list("s", web, bad)
			c.send(a, bad)
			web.roll("i:2")
			web.finish()
			w.take()
			dead := w.dead()
			require.Len(t, dead, 1)
			require.Contains(t, dead[0], c.says)
			require.Equal(t, []string{"started", "completed"}, names(w.once(), "web")[:2])
			require.Empty(t, names(w.told(), "bad"))
		})
	}
}

func TestWhatIsOfWorkspacesIsPassedBy(t *testing.T) {
	t.Parallel()
	w := setup(t)
	a := w.agent(7)
	a.say(cell.ObservedResync(7), events.TypeObservedResyncBegun, map[string]any{
		"resync_id": "r", "cluster_uid": a.cluster, "cause": "start", "count": 1, "list_versions": []string{}, "observed_at": a.now,
	})
	a.say(cell.Observed(7, "deployment", "ws-1", "ide"), events.TypeObservedDeployment, json.RawMessage(`"not even looked at"`))
	a.tick()
	w.take()
	require.Empty(t, w.dead())
	var resync string
	require.NoError(t, w.pool.QueryRow(t.Context(), `select resync_id from agents`).Scan(&resync))
	require.Empty(t, resync)
}

// dead are the reasons of what is on DEAD.
func (w *world) dead() []string {
	w.t.Helper()
	stream, err := w.js.Stream(w.t.Context(), topology.StreamDead)
	require.NoError(w.t, err)
	var all []string
	for n := uint64(1); n <= stream.CachedInfo().State.LastSeq; n++ {
		m, err := stream.GetMsg(w.t.Context(), n, jetstream.WithGetMsgSubject(cell.All(topology.FamilyDead)))
		require.NoError(w.t, err)
		require.True(w.t, strings.HasPrefix(m.Subject, cell.Prefix(topology.FamilyDead)+".deploys.observed."), m.Subject)
		all = append(all, m.Header.Get(deadletter.ReasonHeader))
	}
	return all
}
