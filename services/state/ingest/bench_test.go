package ingest_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/workspace"
	"lockstep.internal/tools/testkit/pgtest"
)

const (
	benchEvents = 20_000
	benchBatch  = 1000
)

// BenchmarkIngest compares a stream taken in whole with bare upserts of the same rows: new objects of
// nobody's, the same objects again with a higher version, and workspaces that all change their state.
func BenchmarkIngest(b *testing.B) {
	w := newFixture(b)
	a := w.agent(7)
	workspaces := make([]workspace.Workspace, 0, 1000)
	for i := range 1000 {
		made, _, err := workspace.New(
			workspace.Creation{
				Name:      fmt.Sprintf("w%d", i),
				ProjectID: 4,
				AgentID:   7,
				UserID:    9,
				Spec:      workspace.Spec{Image: "ide"},
				Now:       start(),
			},
		)
		require.NoError(b, err)
		workspaces = append(workspaces, made)
	}
	bench := func(name string, of func(i int) events.ObservedDeployment) {
		b.Run(name, func(b *testing.B) {
			w.t = b
			for b.Loop() {
				b.StopTimer()
				require.NoError(b, w.purge(b))
				data := a.send(b, of)
				w.reset(workspaces)
				b.StartTimer()
				began := time.Now()
				stop := w.begin(benchBatch)
				w.caughtUp()
				b.ReportMetric(benchEvents/time.Since(began).Seconds(), "events/s")
				b.StopTimer()
				stop()
				w.open(pgtest.Database(b))
				began = time.Now()
				w.upsert(b, data)
				b.ReportMetric(benchEvents/time.Since(began).Seconds(), "bare/s")
				b.StartTimer()
			}
		})
	}
	object := func(i, version int, namespace, name, id string) events.ObservedDeployment {
		meta := a.meta(namespace, name, version, false, "", id)
		meta.Labels = map[string]string{
			workspace.LabelAgent:         "7",
			workspace.LabelWorkspace:     id,
			workspace.LabelWorkspaceName: name,
		}
		meta.Annotations = map[string]string{workspace.AnnotationDesiredRevision: "1"}
		replicas := i / 1000 % 2
		return events.ObservedDeployment{
			Object:             meta,
			SpecReplicas:       &replicas,
			AvailableReplicas:  replicas,
			HasStatus:          true,
			Generation:         2,
			ObservedGeneration: 2,
			Replicas:           1,
			Conditions: []events.Condition{
				{
					Type:               "Available",
					Status:             "True",
					Reason:             "MinimumReplicasAvailable",
					Message:            "Deployment has minimum availability.",
					LastTransitionTime: new(start()),
				},
				{
					Type:               "Progressing",
					Status:             "True",
					Reason:             "NewReplicaSetAvailable",
					Message:            "ReplicaSet has successfully progressed.",
					LastTransitionTime: new(start()),
				},
			},
		}
	}
	bench("new objects", func(i int) events.ObservedDeployment { return object(i, i+1, "ns", fmt.Sprintf("o%d", i), "") })
	bench(
		"same objects",
		func(i int) events.ObservedDeployment { return object(i, i+1, "ns", fmt.Sprintf("o%d", i%1000), "") },
	)
	bench("workspaces that change", func(i int) events.ObservedDeployment {
		ws := workspaces[i%1000]
		return object(i, i+1, ws.Namespace, ws.Name, ws.ID.String())
	})
}

func (w *fixture) purge(b *testing.B) error {
	b.Helper()
	s, err := w.js.Stream(b.Context(), "OBSERVED")
	if err != nil {
		return err
	}
	return s.Purge(b.Context())
}

func (a *fakeAgent) send(b *testing.B, of func(i int) events.ObservedDeployment) []events.ObservedDeployment {
	b.Helper()
	out := make([]events.ObservedDeployment, benchEvents)
	futures := make([]jetstream.PubAckFuture, 0, len(out))
	for i := range out {
		out[i] = of(i)
		e, err := event.New(event.Attributes{
			Type:    events.TypeObservedDeployment,
			Source:  event.AgentSource("local", 7, "watcher"),
			Subject: "s",
			ID:      fmt.Sprint(i),
			Time:    start(),
		}, out[i])
		require.NoError(b, err)
		m, err := event.Encode(e, cell.Observed(7, "deployment", out[i].Object.Namespace, out[i].Object.Name))
		require.NoError(b, err)
		f, err := a.js.PublishMsgAsync(m)
		require.NoError(b, err)
		futures = append(futures, f)
	}
	<-a.js.PublishAsyncComplete()
	for _, f := range futures {
		select {
		case err := <-f.Err():
			require.NoError(b, err)
		default:
		}
	}
	return out
}

// upsert is the least that stores the rows: one guarded statement and one transaction per batch.
func (w *fixture) upsert(b *testing.B, all []events.ObservedDeployment) {
	b.Helper()
	for len(all) > 0 {
		n := min(len(all), benchBatch)
		columns := func() []string { return make([]string, 0, n) }
		names, namespaces, uids, versions, data := columns(), columns(), columns(), columns(), columns()
		workspaces := make([]*uuid.UUID, 0, n)
		for i := range all[:n] {
			o := &all[i].Object
			e, err := event.New(
				event.Attributes{Type: events.TypeObservedDeployment, Source: "/s", Subject: "s", ID: "1", Time: start()},
				all[i],
			)
			require.NoError(b, err)
			names, namespaces, uids, versions, data = append(
				names,
				o.Name,
			), append(
				namespaces,
				o.Namespace,
			), append(
				uids,
				o.UID,
			), append(
				versions,
				o.ResourceVersion,
			), append(
				data,
				string(e.Data()),
			)
			var id *uuid.UUID
			if parsed, err := uuid.Parse(o.WorkspaceID); err == nil {
				id = &parsed
			}
			workspaces = append(workspaces, id)
		}
		w.tx(func(tx pgx.Tx) error {
			_, err := tx.Exec(b.Context(), `
				insert into observed_objects as o (agent_id, kind, namespace, name, uid, cluster_uid, epoch, resource_version, deleted, workspace_id, data)
				select 7, 'deployment', n.namespace, n.name, n.uid, 'c', 1, n.version::numeric, false, n.workspace_id, n.data::jsonb
				from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::uuid[], $6::text[]) as n (namespace, name, uid, version, workspace_id, data)
				on conflict (agent_id, kind, namespace, name) do update set resource_version = excluded.resource_version, data = excluded.data
				where excluded.resource_version > o.resource_version`, namespaces, names, uids, versions, workspaces, data)
			return err
		})
		all = all[n:]
	}
}
