package detection

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/tools/detection/watchertest"
)

// BenchmarkDetector processes batches of messages in memory, as a replay does.
func BenchmarkDetector(b *testing.B) {
	var messages []*nats.Msg
	w := &watchertest.Watcher{
		Cell:    "local",
		Now:     time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC),
		Publish: func(m *nats.Msg) error { messages = append(messages, m); return nil },
	}
	var all []*watchertest.Deployment
	for i := range 200 {
		all = append(all, w.Deployment(fmt.Sprintf("web-%d", i), nil))
	}
	require.NoError(b, w.List("r1", all...))
	for round := range 8 {
		for _, step := range []func(*watchertest.Deployment) error{
			func(d *watchertest.Deployment) error { return d.Roll(fmt.Sprint(round + 2)) },
			(*watchertest.Deployment).Step, (*watchertest.Deployment).Finish,
		} {
			for _, d := range all {
				require.NoError(b, step(d))
			}
		}
	}
	b.ReportAllocs()
	processed := 0
	for b.Loop() {
		d := New("local", environment.Rules{})
		for part := range slices.Chunk(messages, batchSize) {
			batch := make([]message, len(part))
			for i, m := range part {
				processed++
				batch[i] = d.decode(uint64(processed), m.Subject, m.Header, m.Data)
			}
			_, rejected, err := d.process(b.Context(), batch)
			require.NoError(b, err)
			require.Empty(b, rejected)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(processed), "ns/message")
}
