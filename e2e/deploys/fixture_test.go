package deploys_test

import (
	"os"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/services/deploys"
	"lockstep.internal/services/watcher"
	"lockstep.internal/tools/stack"
)

// shared is a system that reports all workloads of its cluster. At the end, everything that it
// published about rollouts is compared with what the API server reported.
var shared = fixture.Share(func(tb testing.TB) stack.Options {
	sinks := writeSinks(tb)
	return stack.Options{Workloads: watcher.Workloads{Enabled: true}, Configure: func(_ string, config any) {
		switch cfg := config.(type) {
		case *watcher.Config:
			cfg.TickInterval = time.Second
		case *deploys.Config:
			cfg.SinksFile = sinks
		}
	}}
}, func(s *fixture.System) {
	s.Recorder = fixture.RecordWorkloads(s.T, s.Kube, metav1.NamespaceAll)
}, func(s *fixture.System) {
	requireScalingDurations(s)
	requireFactsMatchAPIServer(s)
	fixture.RequireConsistentFacts(s)
})

func TestMain(m *testing.M) { os.Exit(fixture.Main(m, 8)) }
