package watcher_test

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/leader"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher"
	"lockstep.internal/services/watcher/kube"
	"lockstep.internal/services/watcher/object"
)

func contains(text, part string) bool { return strings.Contains(text, part) }

func begun(h recorded) bool { return h.Type == events.TypeObservedResyncBegun }
func ended(h recorded) bool { return h.Type == events.TypeObservedResyncEnded }

func last(read []recorded) recorded { return read[len(read)-1] }

// of picks the events of one object, by kind of event and name.
func of(read []recorded, kind, name string) []recorded {
	var found []recorded
	for _, h := range read {
		if h.Type == kind && h.Object.Name == name {
			found = append(found, h)
		}
	}
	return found
}

// resynced reads one whole resync and returns its begin event and its members. It skips one that a later session
// replaces.
func (p *recorder) resynced(t *testing.T) (recorded, []recorded) {
	t.Helper()
	begin := last(p.until(t, "a resync's begin", begun))
	read := p.until(t, "its end", func(h recorded) bool {
		if begun(h) {
			begin = h
		}
		return ended(h) && h.ResyncID == begin.ResyncID
	})
	end := last(read)
	require.Equal(t, begin.Count, end.Count)
	require.Equal(t, begin.ClusterUID, end.ClusterUID)
	var members []recorded
	for _, h := range read {
		if h.Object.ResyncID == begin.ResyncID {
			require.Equal(t, events.UpdateTypeFull, h.Object.UpdateType)
			members = append(members, h)
		}
	}
	return begin, members
}

func TestChangesArePublishedInOrder(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.workspace(t)
	start(t, f.config(t))
	recorder := f.record(t)
	begin, members := recorder.resynced(t)
	require.Equal(t, events.ResyncCauseStart, begin.Cause)
	require.Empty(t, members)
	require.Len(t, begin.ListVersions, 3)

	w.create(t, "ide", 1)
	var pod, workload bool
	running := recorder.until(t, "a running pod and its Deployment", func(h recorded) bool {
		pod = pod || h.Type == events.TypeObservedPod && h.Phase == "Running"
		workload = workload || h.Type == events.TypeObservedWorkload && h.Replica != nil && *h.Replica == 1
		return pod && workload
	})
	w.scale(t, "ide", 0)
	stopped := recorder.until(t, "the pod's end", func(h recorded) bool {
		return h.Type == events.TypeObservedPod && h.Object.Verb == events.VerbDeleted
	})
	w.remove(t, "ide")
	missing := map[string]bool{events.TypeObservedWorkload: true, events.TypeObservedWorkloadRevision: true}
	removed := recorder.until(t, "the end of Deployment and ReplicaSet", func(h recorded) bool {
		if h.Object.Verb == events.VerbDeleted {
			delete(missing, h.Type)
		}
		return len(missing) == 0
	})
	read := append(append(running, stopped...), removed...)

	versions := map[string]int{}
	gone := map[string]bool{}
	kinds := map[string]bool{}
	for _, h := range read {
		if h.Object.UID == "" {
			continue // a tick
		}
		require.Equal(t, cellName.Observed(f.agent, "deployment", w.namespace, "ide"), h.Subject, "%s", h.Type)
		require.Equal(t, "id-of-ide", h.Object.WorkspaceID)
		require.False(t, h.Object.FirstSeen, "its creation was observed")
		require.Equal(t, events.UpdateTypePartial, h.Object.UpdateType)
		require.Equal(t, begin.ClusterUID, h.Object.ClusterUID)
		require.False(t, gone[h.Object.UID], "%s is published after its deletion", h.Object.Name)
		version := atoi(t, h.Object.ResourceVersion)
		require.Greater(t, version, versions[h.Object.UID], "each version once, in order")
		versions[h.Object.UID] = version
		gone[h.Object.UID] = h.Object.Verb == events.VerbDeleted
		kinds[h.Type] = true
	}
	require.Len(t, kinds, 3)
	first := of(read, events.TypeObservedWorkload, "ide")[0]
	require.Equal(t, 1, *first.Replica)
	require.Equal(t, "deployment", first.Kind)
	require.Nil(t, first.Template, "state does not read the template")
	for _, h := range read {
		if h.Type == events.TypeObservedWorkloadRevision {
			require.Equal(t, "replicaset", h.Kind)
			require.Equal(t, "ide", h.Workload)
			require.Equal(t, first.Object.UID, h.WorkloadUID)
		}
	}
	id := begin.ClusterUID + "/deployment/" + first.Object.UID + "/upserted/" + first.Object.ResourceVersion + "/"
	require.True(t, strings.HasPrefix(first.ID, id), first.ID)
}

func TestLatestVersionsArePublishedAfterAnOutageOfNATS(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.workspace(t)
	w.create(t, "kept", 0)
	w.create(t, "gone", 0)
	cfg := f.config(t)
	cfg.Publish.MaxBacklogAge = 100 * time.Millisecond
	p := start(t, cfg)
	recorder := f.record(t)
	_, members := recorder.resynced(t)
	require.Len(t, of(members, events.TypeObservedWorkload, "kept"), 1)

	f.server.Down()
	p.awaitReason(t, "nats", false, "not connected")
	for i := range 5 {
		w.annotate(t, "kept", fmt.Sprint(i))
	}
	w.remove(t, "gone")
	w.create(t, "new", 0)
	p.awaitReason(t, "backlog", false, "not acknowledged")
	require.NoError(t, f.server.Restart())

	missing := map[string]bool{"kept": true, "gone": true, "new": true}
	read := recorder.until(t, "what happened while NATS was down", func(h recorded) bool {
		switch {
		case h.Type != events.TypeObservedWorkload:
		case h.Object.Name == "kept" && h.Object.Annotations["lockstep.dev/note"] == "4",
			h.Object.Name == "gone" && h.Object.Verb == events.VerbDeleted,
			h.Object.Name == "new":
			delete(missing, h.Object.Name)
		}
		return len(missing) == 0
	})
	for _, h := range read {
		require.False(t, begun(h), "an outage needs no resync")
	}
	notes := of(read, events.TypeObservedWorkload, "kept")
	require.Less(t, len(notes), 5, "not every version in between")
	p.awaitReason(t, "backlog", true, "")
	p.awaitReason(t, "nats", true, "")
}

func TestAcknowledgedVersionIsNotPublishedAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.workspace(t)
	p := start(t, f.config(t))
	recorder := f.record(t)
	recorder.resynced(t)
	w.create(t, "quiet", 0)
	// A version in flight when the server stops may be sent twice. So wait until the controllers are
	// done and everything is acknowledged.
	final := map[string]bool{}
	for _, version := range w.settled(t, "quiet") {
		final[version] = true
	}
	first := recorder.until(t, "the last versions", func(h recorded) bool {
		delete(final, h.Object.ResourceVersion)
		return len(final) == 0
	})
	require.Eventually(
		t,
		func() bool { return contains(p.metrics(t), "\nlockstep_watcher_backlog 0\n") },
		timeout,
		time.Millisecond,
	)
	require.NoError(t, f.server.Restart())
	p.awaitReason(t, "nats", true, "")
	w.create(t, "marker", 0)
	read := recorder.until(t, "the marker", func(h recorded) bool { return h.Object.Name == "marker" })
	seen := map[string]bool{}
	for _, h := range append(first, read...) {
		if h.Object.UID != "" {
			require.False(t, seen[h.ID], "%s twice", h.ID)
			seen[h.ID] = true
		}
	}
}

func TestRestartPublishesEverything(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.workspace(t)
	w.create(t, "kept", 0)
	w.create(t, "gone", 0)
	w.settled(t, "kept", "gone")
	p := start(t, f.config(t))
	recorder := f.record(t)
	recorder.resynced(t)
	p.stop(t)

	w.remove(t, "gone")
	require.Eventually(t, func() bool {
		list, err := w.client.AppsV1().ReplicaSets(w.namespace).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		return len(list.Items) <= 1
	}, timeout, 20*time.Millisecond)
	w.create(t, "new", 0)
	start(t, f.config(t))
	begin, members := recorder.resynced(t)
	require.Equal(t, events.ResyncCauseStart, begin.Cause, "the Lease was released")
	require.Len(t, members, begin.Count)
	require.Len(t, of(members, events.TypeObservedWorkload, "kept"), 1)
	require.Len(t, of(members, events.TypeObservedWorkload, "new"), 1)
	require.Empty(t, of(members, events.TypeObservedWorkload, "gone"))
	for _, m := range members {
		require.Equal(t, events.VerbUpserted, m.Object.Verb)
		require.Contains(t, m.ID, "/"+begin.ResyncID)
		require.LessOrEqual(t, atoi(t, of(members, events.TypeObservedWorkload, "kept")[0].Object.ResourceVersion),
			atoi(t, begin.ListVersions[0].ResourceVersion))
	}
	require.True(t, of(members, events.TypeObservedWorkload, "kept")[0].Object.FirstSeen,
		"this process had not seen it before")
}

func TestStandbyTakesOver(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.workspace(t)
	first := start(t, f.config(t))
	recorder := f.record(t)
	recorder.resynced(t)
	second := start(t, f.config(t))
	second.awaitReason(t, "leader", true, "is the leader")
	first.awaitReason(t, "leader", true, "")
	w.create(t, "ide", 0)
	recorder.until(t, "the first one's report", func(h recorded) bool { return h.Object.Name == "ide" })

	first.stop(t)
	begin, _ := recorder.resynced(t)
	require.Equal(t, events.ResyncCauseLeaderElected, begin.Cause)
	second.awaitReason(t, "leader", true, "")
	w.annotate(t, "ide", "changed")
	recorder.until(t, "the second one's report", func(h recorded) bool {
		return h.Object.Annotations["lockstep.dev/note"] == "changed"
	})
}

func TestRequestedResyncHasTheNonce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.workspace(t).create(t, "ide", 0)
	p := start(t, f.config(t))
	recorder := f.record(t)
	recorder.resynced(t)
	f.request(t, "first")
	begin, members := recorder.resynced(t)
	require.Equal(t, events.ResyncCauseRequested, begin.Cause)
	require.Equal(t, "first", begin.Nonce)
	require.NotEmpty(t, members)
	require.False(t, members[0].Object.FirstSeen)
	f.awaitAcknowledged(t)

	// A request while no watcher runs is answered by the first resync of the next one.
	p.stop(t)
	f.request(t, "second")
	f.configure(t, 1, time.Hour)
	start(t, f.config(t))
	begin, _ = recorder.resynced(t)
	require.Equal(t, events.ResyncCauseStart, begin.Cause)
	require.Equal(t, "second", begin.Nonce)
	f.awaitAcknowledged(t)
}

// awaitAcknowledged waits until the agent's consumer has nothing left.
func (f *fixture) awaitAcknowledged(t *testing.T) {
	t.Helper()
	consumer, err := f.js.Consumer(t.Context(), topology.StreamControl, topology.WatcherConsumer(f.agent))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		info, err := consumer.Info(t.Context())
		require.NoError(t, err)
		return info.NumPending == 0 && info.NumAckPending == 0
	}, timeout, 20*time.Millisecond)
}

func TestIntervalAndConfigurationCauseResyncs(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	clock := clocktesting.NewFakeClock(epoch())
	cfg := f.config(t)
	cfg.Clock = clock
	start(t, cfg)
	recorder := f.record(t)
	var tick, end recorded // in any order
	recorder.until(t, "the first tick and the end of the first resync", func(h recorded) bool {
		switch {
		case h.Type == events.TypeObservedTick:
			tick = h
		case ended(h):
			end = h
		}
		return tick.Type != "" && end.Type != ""
	})
	require.Equal(t, epoch(), tick.ObservedAt)

	step := func(d time.Duration) {
		// The ticker and the timer of the next resync.
		require.Eventually(t, func() bool { return clock.Waiters() >= 2 }, timeout, time.Millisecond)
		clock.Step(d)
	}
	step(cfg.TickInterval)
	tick = last(recorder.until(t, "the second tick", func(h recorded) bool { return h.Type == events.TypeObservedTick }))
	require.Equal(t, epoch().Add(15*time.Second), tick.ObservedAt)

	step(time.Hour)
	begin, _ := recorder.resynced(t)
	require.Equal(t, events.ResyncCauseInterval, begin.Cause)

	f.configure(t, 2, 10*time.Minute)
	begin, _ = recorder.resynced(t)
	require.Equal(t, events.ResyncCauseConfigChanged, begin.Cause)
	f.configure(t, 1, time.Hour)
	f.awaitAcknowledged(t)
	step(10 * time.Minute)
	begin, _ = recorder.resynced(t)
	require.Equal(t, events.ResyncCauseInterval, begin.Cause,
		"a lower revision changes nothing, and the interval is the configured one")
}

func TestTooLargeObjectIsReportedAsRejected(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.workspace(t)
	w.create(t, "fat", 0, func(d *appsv1.Deployment) {
		d.Annotations = map[string]string{"lockstep.dev/note": strings.Repeat("x", 8<<10)}
	})
	w.create(t, "slim", 0)
	cfg := f.config(t)
	cfg.Publish.MaxMessage = 4 * config.KiB
	start(t, cfg)
	recorder := f.record(t)
	begin, members := recorder.resynced(t)
	require.Len(t, members, begin.Count, "a rejected object is a member")
	rejected := of(members, events.TypeObservedRejected, "fat")
	require.Len(t, rejected, 1)
	require.Equal(t, cellName.ObservedRejected(f.agent), rejected[0].Subject)
	require.Equal(t, "too_large", rejected[0].Reason)
	require.Equal(t, "deployment", rejected[0].Kind)
	require.Equal(t, "id-of-fat", rejected[0].Object.WorkspaceID)
	require.Empty(t, of(members, events.TypeObservedWorkload, "fat"))
	require.Len(t, of(members, events.TypeObservedWorkload, "slim"), 1)

	w.annotate(t, "fat", "not any more")
	recorder.until(t, "the one that fits again", func(h recorded) bool {
		return h.Type == events.TypeObservedWorkload && h.Object.Annotations["lockstep.dev/note"] == "not any more"
	})
}

func TestMainRejectsUnreadableCredentials(t *testing.T) {
	t.Parallel()
	cfg := watcher.DefaultConfig()
	cfg.CredentialsFile = filepath.Join(t.TempDir(), "none")
	require.ErrorContains(t, watcher.Main(t.Context(), cfg), "credentials")
}

func TestConfigReturnsAllErrors(t *testing.T) {
	t.Parallel()
	cfg := watcher.DefaultConfig()
	require.Len(t, cfg.Validate(), 1, "only the credentials are to be given")
	cfg.FullResyncInterval, cfg.TickInterval = 0, 0
	require.Len(t, cfg.Validate(), 3)
	require.Empty(t, cfg.Publish.Validate())
	require.Len(t, watcher.Publish{MaxMessage: 1}.Validate(), 4)
	require.Empty(t, cfg.Lease.Validate())
	require.Len(t, leader.Config{}.Validate(), 3)
	require.Empty(t, kube.DefaultConfig().Validate())
	require.Len(t, kube.Config{Context: "c"}.Validate(), 3)
	require.Empty(t, cfg.Workloads.Validate())
	workloads := watcher.Workloads{Selector: "a=b=c", Namespaces: []string{"ok", "Not OK"}, Annotations: []string{""}}
	require.Len(t, workloads.Validate(), 3)
}

func TestListReadsObjectsThatAreNotHeldWhole(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.workspace(t)
	for _, name := range []string{"a", "b"} {
		w.create(t, name, 0, func(d *appsv1.Deployment) { d.Spec.MinReadySeconds = 7 })
	}
	client, err := kube.NewClient(f.config(t).Kubernetes, "test", slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	scope := kube.Workspaces(object.LabelAgent + "=" + strconv.FormatInt(f.agent, 10))
	list, err := client.List(t.Context(), scope, object.Deployment, func(object.Key, string) object.Object { return nil })
	require.NoError(t, err)
	require.Len(t, list.Objects, 2)
	for _, listed := range list.Objects {
		o, err := object.Decode(listed)
		require.NoError(t, err)
		d, isDeployment := o.(*appsv1.Deployment)
		require.True(t, isDeployment)
		require.Equal(t, int32(7), d.Spec.MinReadySeconds)
	}
}
