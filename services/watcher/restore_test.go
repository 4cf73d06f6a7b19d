package watcher_test

import (
	"fmt"
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

// startOn starts a watcher that uses the fake API server.
func (f *fixture) startOn(t *testing.T, server *kubetest.Server) {
	t.Helper()
	start(t, f.configWith(server.Kubeconfig(t)))
}

// awaitWatch waits until the watcher watches a resource: the server sends changes to present watches only.
func awaitWatch(t *testing.T, server *kubetest.Server, resource string) {
	t.Helper()
	require.Eventually(t, func() bool { return server.Watching(resource) == 1 }, timeout, time.Millisecond)
}

func TestRestoredClusterIsReportedInItsLowerVersions(t *testing.T) {
	t.Parallel()
	for name, restore := range map[string]func(*testing.T, *fixture, *kubetest.Server){
		"detected by the watch": func(_ *testing.T, _ *fixture, server *kubetest.Server) { server.Expire(1 << 30) },
		"detected by a list": func(t *testing.T, f *fixture, _ *kubetest.Server) {
			t.Helper()
			f.request(t, "n")
		},
		// The API server accepts a watch from a future version and sends nothing.
		"detected by the lease": func(_ *testing.T, _ *fixture, server *kubetest.Server) { server.Rewind(0) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			server := kubetest.Start(t)
			server.Set(kubetest.Deployments, 100, typed(deployment("old", "1", 90)), typed(deployment("young", "2", 95)))
			f.startOn(t, server)
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
			require.Equal(t, "40", members[0].Object.ResourceVersion, "versions from before the restore are ignored")
			require.True(t, members[0].Object.FirstSeen)
			if name == "detected by a list" {
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
	f.startOn(t, server)
	recorder := f.record(t)
	recorder.resynced(t)
	server.Set(kubetest.Deployments, 200, typed(deployment("kept", "2", 95)))
	server.Expire(150)
	read := recorder.until(t, "the deletion", func(h recorded) bool { return h.Object.Verb == events.VerbDeleted })
	require.Equal(t, "gone", last(read).Object.Name)
	require.Equal(t, "90", last(read).Object.ResourceVersion)
	require.Empty(t, of(read, events.TypeObservedWorkload, "kept"), "it did not change")
}

// Workspaces are created, changed and deleted while a full resync is listed. The reader learns it at once, and once
// more after the begin event, which may start another epoch.
func TestChangesDuringAResyncArePublishedAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	server := kubetest.Start(t)
	server.Set(kubetest.Deployments, 100, typed(deployment("gone", "1", 90)), typed(deployment("kept", "2", 95)))
	f.startOn(t, server)
	recorder := f.record(t)
	recorder.resynced(t)

	// A list is requested after the watcher has noted the highest version of its kind.
	hold := server.Hold(kubetest.Deployments)
	f.request(t, "n")
	receive(t, hold.Reached)
	awaitWatch(t, server, kubetest.Deployments)
	server.Send(kubetest.Deployments, "ADDED", typed(deployment("new", "3", 101)))
	server.Send(kubetest.Deployments, "DELETED", typed(deployment("gone", "1", 102)))
	server.Send(kubetest.Deployments, "MODIFIED", typed(deployment("kept", "2", 103)))
	seen := recorder.objects(t, 3)
	for name, version := range map[string]string{"new": "101", "gone": "102", "kept": "103"} {
		require.Equal(t, version, seen[name].Object.ResourceVersion, "published before the list ends")
		require.Empty(t, seen[name].Object.ResyncID)
	}
	hold.Release()

	before := recorder.until(t, "the begin", begun)
	require.False(t, last(before).ObservedAt.After(seen["new"].Object.ObservedAt),
		"it does not begin after a change that its lists may miss")
	id := last(before).ResyncID
	require.Equal(t, "n", last(before).Nonce)
	require.Equal(t, 2, last(before).Count)
	require.Contains(t, last(before).KnownVersions, events.ListVersion{Kind: "deployment", ResourceVersion: "103"},
		"the highest published version")
	seen = recorder.objects(t, 3)
	require.Equal(t, id, seen["kept"].Object.ResyncID)
	require.Equal(t, "103", seen["kept"].Object.ResourceVersion)
	require.Equal(t, id, seen["gone"].Object.ResyncID)
	require.Equal(t, events.VerbDeleted, seen["gone"].Object.Verb)
	require.Equal(t, "101", seen["new"].Object.ResourceVersion)
	require.Empty(t, seen["new"].Object.ResyncID)
}

// objects reads until it has seen n objects, and returns the last event of each.
func (r *recorder) objects(t *testing.T, n int) map[string]recorded {
	t.Helper()
	seen := map[string]recorded{}
	r.until(t, fmt.Sprintf("%d objects", n), func(h recorded) bool {
		if h.Object.UID != "" {
			seen[h.Object.Name] = h
		}
		return len(seen) == n
	})
	return seen
}

func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(timeout):
		require.Fail(t, "timed out waiting for a value")
		panic("unreachable")
	}
}
