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

func TestMalformedMessageIsDeadLetteredAndOthersAreProcessed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		send   func(a *agent, p *app)
		reason string
	}{
		"invalid data": {
			func(a *agent, p *app) { a.publish(p.subject(), events.TypeObservedWorkload, json.RawMessage(`"x"`)) },
			"data",
		},
		"subject of another workload": {func(a *agent, p *app) {
			a.publish(cell.ObservedWorkload(7, "deployment", "shop", "other"), events.TypeObservedWorkload, p.observation())
		}, "not allowed on subject"},
		"unknown kind": {func(a *agent, p *app) {
			o := p.observation()
			o.Kind = "cronjob"
			a.publish(p.subject(), events.TypeObservedWorkload, o)
		}, "must be one of daemonset, deployment, statefulset"},
		"invalid version": {func(a *agent, p *app) {
			o := p.observation()
			o.Object.ResourceVersion = "x"
			a.publish(p.subject(), events.TypeObservedWorkload, o)
		}, "resource_version"},
		"a zero byte": {func(a *agent, p *app) {
			o := p.observation()
			o.Object.Labels = map[string]string{"a": "\x00"}
			a.publish(p.subject(), events.TypeObservedWorkload, o)
		}, "zero byte"},
		"a time that PostgreSQL cannot store": {func(a *agent, p *app) {
			o := p.observation()
			o.Conditions[0].LastUpdateTime = new(time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC))
			a.publish(p.subject(), events.TypeObservedWorkload, o)
		}, "outside of the years"},
		"a revision of the wrong kind": {func(a *agent, p *app) {
			a.publish(p.subject(), events.TypeObservedWorkloadRevision, events.ObservedWorkloadRevision{
				Object: p.meta("x", "u", "5", a.now), Kind: events.WorkloadRevisionKindControllerrevision, Workload: p.name,
				WorkloadUID: p.uid,
			})
		}, "is not a revision object of a"},
		"a tick on a workload's subject": {func(a *agent, p *app) {
			a.publish(p.subject(), events.TypeObservedTick, events.ObservedTick{ClusterUID: a.cluster, ObservedAt: a.now})
		}, "a tick: not allowed on subject"},
		"unknown event type": {func(a *agent, p *app) {
			a.publish(p.subject(), "dev.lockstep.observed.workload.v9", p.observation())
		}, "unknown to this version"},
		"a begin without an id": {func(a *agent, _ *app) {
			a.publish(cell.ObservedResync(7), events.TypeObservedResyncBegun, map[string]any{
				"resync_id": "", "cluster_uid": a.cluster, "cause": "start", "count": 1, "list_versions": []string{},
				"observed_at": a.now, "scope": "workloads",
			})
		}, "resync_id"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			a := w.agent(7)
			web, bad := a.app("web"), a.app("bad")
			a.list("s", web, bad)
			c.send(a, bad)
			web.roll("i:2")
			web.finish()
			w.process()
			dead := w.deadLetters()
			require.Len(t, dead, 1)
			require.Contains(t, dead[0], c.reason)
			require.Equal(t, []string{"started", "completed"}, names(w.checkOnce(), "web")[:2])
			require.Empty(t, names(w.published(), "bad"))
		})
	}
}

func TestObservationsOfWorkspacesAreIgnored(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a := w.agent(7)
	a.publish(cell.ObservedResync(7), events.TypeObservedResyncBegun, map[string]any{
		"resync_id": "r", "cluster_uid": a.cluster, "cause": "start", "count": 1, "list_versions": []string{},
		"observed_at": a.now,
	})
	a.publish(cell.Observed(7, "deployment", "ws-1", "ide"), events.TypeObservedDeployment,
		json.RawMessage(`"not decoded"`))
	a.tick()
	w.process()
	require.Empty(t, w.deadLetters())
	var resync string
	require.NoError(t, w.pool.QueryRow(t.Context(), `select resync_id from agents`).Scan(&resync))
	require.Empty(t, resync)
}

// deadLetters returns the reasons of all dead letters.
func (w *fixture) deadLetters() []string {
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
