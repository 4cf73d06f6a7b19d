package nats_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/topology"
)

// BenchmarkFacts processes rollouts of 120 workloads.
func BenchmarkFacts(b *testing.B) {
	w := newFixture(b)
	a := w.agent(7)
	var apps []*app
	for n := range 120 {
		apps = append(apps, a.app(fmt.Sprintf("web-%d", n)))
	}
	a.list("s", apps...)
	for round := range 12 {
		for _, p := range apps {
			p.roll(fmt.Sprintf("i:%d", round+2))
		}
		for _, p := range apps {
			p.step()
		}
		for _, p := range apps {
			p.finish()
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		w.pool = w.database(b)
		require.NoError(b, w.js.DeleteStream(b.Context(), topology.StreamDeploys))
		require.NoError(b, topology.Ensure(b.Context(), w.js, cell, topology.Options{StorageBytes: 1 << 30}))
		b.StartTimer()
		start := time.Now()
		stop := w.run(w.reader(0))
		w.awaitProcessed()
		duration := time.Since(start)
		stop()
		b.StopTimer()
		stream, err := w.js.Stream(b.Context(), topology.StreamDeploys)
		require.NoError(b, err)
		b.ReportMetric(float64(stream.CachedInfo().State.LastSeq)/duration.Seconds(), "facts/s")
		b.ReportMetric(float64(w.lastSequence())/duration.Seconds(), "observations/s")
		b.StartTimer()
	}
}
