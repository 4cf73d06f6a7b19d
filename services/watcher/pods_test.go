package watcher_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
)

func TestPodsOfARolloutWithoutProgressAreReported(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := f.workloadNamespace(t, "")
	start(t, f.trackingConfig(t, "", s))
	recorder := f.record(t)
	recorder.resyncedOf(t, workloads)
	s.deployment(t, "web", 1, nil)
	s.settled(t, "web")
	s.patch(t, "web",
		`{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"registry.example/missing:1"}]}}}}`)
	lists := func(h recorded) bool { return h.Type == events.TypeObservedWorkloadPods }
	read := recorder.until(t, "the failing pod", lists)
	list := last(read)
	require.Equal(t, cellName.ObservedWorkload(f.agent, "deployment", s.namespace, "web"), list.Subject)
	require.Len(t, list.Pods, 1)
	require.Contains(t, []string{"ErrImagePull", "ImagePullBackOff"}, list.Pods[0].Containers[0].Reason)
	require.Equal(t, "registry.example/missing:1", list.Pods[0].Containers[0].Image)
	var version string
	for _, h := range read {
		if h.Type == events.TypeObservedWorkload {
			version = h.Object.ResourceVersion
		}
	}
	require.Equal(t, version, list.Object.ResourceVersion, "readers know the version of the workload")
}
