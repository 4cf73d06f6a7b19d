package watcher_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/kube/kubetest"
)

func typed(d *appsv1.Deployment) *appsv1.Deployment {
	d.TypeMeta = metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}
	return d
}

// played starts a watcher on a played API server, whose cluster may do what a real one cannot.
func (f *fixture) played(t *testing.T, server *kubetest.Server) *process {
	t.Helper()
	return start(t, f.configWith(server.Kubeconfig(t)))
}

func TestRestoredClusterIsReportedInItsLowerVersions(t *testing.T) {
	t.Parallel()
	for name, restore := range map[string]func(*testing.T, *fixture, *kubetest.Server){
		"noticed by the watch": func(_ *testing.T, _ *fixture, server *kubetest.Server) { server.Expire(1 << 30) },
		"noticed by a listing": func(t *testing.T, f *fixture, _ *kubetest.Server) {
			t.Helper()
			f.request(t, "n")
		},
		// An API server takes a watch from a version that it has not reached, and is silent.
		"noticed by the lease": func(_ *testing.T, _ *fixture, server *kubetest.Server) { server.Rewind(0) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			server := kubetest.Start(t)
			server.Set(kubetest.Deployments, 100, typed(deployment("old", "1", 90)), typed(deployment("young", "2", 95)))
			f.played(t, server)
			recorder := f.record(t)
			begin, members := recorder.resynced(t)
			require.Equal(t, "cluster", begin.ClusterUID)
			require.Len(t, members, 2)

			// As it was at version 50.
			server.Set(kubetest.Deployments, 50, typed(deployment("old", "1", 40)))
			restore(t, f, server)
			for begin.ListVersions[0].ResourceVersion != "50" {
				begin, members = recorder.resynced(t)
			}
			require.Len(t, members, 1)
			require.Equal(t, "40", members[0].Object.ResourceVersion, "what is known of the other history counts for nothing")
			require.True(t, members[0].Object.FirstSeen)
			if name == "noticed by a listing" {
				require.Equal(t, "n", begin.Nonce, "the request is still to be answered")
			}
		})
	}
}

func TestMissedDeletionIsReportedAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	server := kubetest.Start(t)
	server.Set(kubetest.Deployments, 100, typed(deployment("gone", "1", 90)), typed(deployment("kept", "2", 95)))
	f.played(t, server)
	recorder := f.record(t)
	recorder.resynced(t)
	server.Set(kubetest.Deployments, 200, typed(deployment("kept", "2", 95)))
	server.Expire(150)
	read := recorder.until(t, "the deletion", func(h recorded) bool { return h.Object.Verb == events.VerbDeleted })
	require.Equal(t, "gone", last(read).Object.Name)
	require.Equal(t, "90", last(read).Object.ResourceVersion)
	require.Empty(t, of(read, events.TypeObservedDeployment, "kept"), "it did not change")
}

// A workspace that is created, and one that is deleted, while a full resync has read its versions
// and waits for NATS.
func TestChangesDuringAResyncArePublishedAfterItsBegin(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	server := kubetest.Start(t)
	server.Set(kubetest.Deployments, 100, typed(deployment("gone", "1", 90)), typed(deployment("kept", "2", 95)))
	p := f.played(t, server)
	recorder := f.record(t)
	recorder.resynced(t)

	hold := server.Hold(kubetest.Pods) // the last kind that is listed
	f.request(t, "n")
	receive(t, hold.Reached)
	server.Send(kubetest.Deployments, "ADDED", typed(deployment("new", "3", 101)))
	server.Send(kubetest.Deployments, "DELETED", typed(deployment("gone", "1", 102)))
	server.Send(kubetest.Deployments, "MODIFIED", typed(deployment("kept", "2", 103)))
	require.Eventually(
		t,
		func() bool { return contains(p.metrics(t), "\nlockstep_watcher_backlog 3\n") },
		timeout,
		time.Millisecond,
	)
	hold.Release()

	before := recorder.until(t, "the begin", begun)
	for _, h := range before[:len(before)-1] {
		require.Empty(t, h.Object.UID, "nothing above the listed versions is published before the begin")
	}
	id := last(before).ResyncID
	require.Equal(t, "n", last(before).Nonce)
	require.Equal(t, 2, last(before).Count)
	seen := map[string]recorded{}
	recorder.until(t, "the three objects", func(h recorded) bool {
		if h.Object.UID != "" {
			seen[h.Object.Name] = h
		}
		return len(seen) == 3
	})
	require.Equal(t, id, seen["kept"].Object.ResyncID)
	require.Equal(t, "103", seen["kept"].Object.ResourceVersion)
	require.Equal(t, id, seen["gone"].Object.ResyncID)
	require.Equal(t, events.VerbDeleted, seen["gone"].Object.Verb)
	require.Equal(t, "101", seen["new"].Object.ResourceVersion)
	require.Empty(t, seen["new"].Object.ResyncID)
}

func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(timeout):
		require.Fail(t, "nothing came")
		panic("unreachable")
	}
}
