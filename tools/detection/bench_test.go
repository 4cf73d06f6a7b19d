package detection_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/tools/detection"
	"lockstep.internal/tools/detection/played"
)

// BenchmarkDetector takes in messages of rollouts that lie in memory.
func BenchmarkDetector(b *testing.B) {
	var told []*nats.Msg
	w := &played.Watcher{
		Cell: cell,
		Now:  time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC),
		Say:  func(m *nats.Msg) error { told = append(told, m); return nil },
	}
	var all []*played.Deployment
	for i := range 200 {
		all = append(all, w.Deployment(fmt.Sprintf("web-%d", i), nil))
	}
	require.NoError(b, w.List("r1", all...))
	for round := range 8 {
		for _, step := range []func(*played.Deployment) error{
			func(d *played.Deployment) error { return d.Roll(fmt.Sprint(round + 2)) },
			(*played.Deployment).Step, (*played.Deployment).Finish,
		} {
			for _, d := range all {
				require.NoError(b, step(d))
			}
		}
	}
	b.ReportAllocs()
	taken := 0
	for b.Loop() {
		d := detection.New(cell, environment.Rules{})
		for i, m := range told {
			if _, err := d.Take(uint64(i+1), m.Subject, m.Header, m.Data); err != nil {
				b.Fatal(err)
			}
			taken++
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(taken), "ns/message")
}
