package observed_test

import (
	"encoding/json"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/observed"
)

// What was read is only read from then on: the next message with the same template is read while the one before is judged.
func TestWhatWasReadIsNotWrittenAgain(t *testing.T) {
	t.Parallel()
	const cell = topology.Cell("local")
	images := make([]events.TemplateImage, 100) // more than are kept
	for i := range images {
		images[i] = events.TemplateImage{Container: strconv.Itoa(i), Image: "i"}
	}
	raw, err := json.Marshal(events.ObservedWorkload{
		Object: events.ObjectMeta{
			ClusterUID: "c", Namespace: "shop", Name: "web", UID: "u", ResourceVersion: "7", ObservedAt: time.Date(2026, 3, 2, 10, 0, 0, 0, time.UTC), Verb: events.VerbUpserted,
			Labels: map[string]string{"app": "web"},
		},
		Kind: events.WorkloadKindDeployment, Template: &events.PodTemplate{Digest: "d", Images: images},
	})
	require.NoError(t, err)
	subject := cell.ObservedWorkload(6, string(events.WorkloadKindDeployment), "shop", "web")
	header := nats.Header{
		"ce-specversion": {"1.0"}, "ce-id": {"1"}, "ce-type": {events.TypeObservedWorkload}, "ce-source": {event.AgentSource(string(cell), 6, "watcher")},
		"ce-time": {"2026-03-02T10:00:00Z"}, "ce-datacontenttype": {event.MediaType},
	}
	decoder := observed.NewDecoder(cell)
	first, err := decoder.Decode(subject, header, raw)
	require.NoError(t, err)
	require.Len(t, first.Workload.Template.Images, 64)
	var judging sync.WaitGroup
	judging.Go(func() {
		if copied := *first.Workload.Template; len(copied.Images) != 64 || first.Workload.Object.Labels["app"] != "web" {
			t.Error("it is another")
		}
	})
	second, err := decoder.Decode(subject, header, raw)
	require.NoError(t, err)
	judging.Wait()
	require.Same(t, first.Workload.Template, second.Workload.Template, "it is remembered")
	require.Equal(t, first, second)
}
