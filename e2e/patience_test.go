package e2e_test

import (
	"encoding/json"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/watcher"
)

// aheadClock is the real one, and can be put forward.
type aheadClock struct {
	clock.RealClock

	ahead atomic.Int64
}

func (c *aheadClock) Now() time.Time                  { return c.RealClock.Now().Add(time.Duration(c.ahead.Load())) }
func (c *aheadClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }
func (c *aheadClock) pass(d time.Duration)            { c.ahead.Add(int64(d)) }

// of gives the clock to an agent's watcher, which tells of it often.
func (c *aheadClock) of(agent string) func(service string, config any) {
	return func(service string, config any) {
		if cfg, ok := config.(*watcher.Config); ok && filepath.Base(cfg.CredentialsFile) == agent+".json" {
			cfg.Clock, cfg.TickInterval = c, time.Second
		}
	}
}

// patientAgent has a clock of its own.
const patientAgent = "patient"

// patienceEndsByTheAgentsClock has workspaces that are stuck, each in another way, which is no trouble until enough time has passed where they are.
func patienceEndsByTheAgentsClock(now *aheadClock) func(s *system) {
	return func(s *system) {
		t := s.t
		here := *s
		here.project = s.newProject(patientAgent)
		agent, err := s.AddAgent(t.Context(), here.project, patientAgent, s.Kubeconfig())
		require.NoError(t, err)
		here.agent = agent.ID

		homeless := here.create("homeless", "registry.example/unschedulable:1")
		hanging, held := here.createRunning("hanging"), here.createRunning("held")
		hangingPod, heldPod := hanging.pod().Name, held.pod().Name
		hanging.breakPod("stuck-terminating")
		held.patchPod(heldPod, map[string]any{"finalizers": []string{"example.org/unmount"}})
		hanging.stop()
		held.stop()
		hanging.untilStopped()
		held.untilStopped()
		homeless.until("without a node", func(w *statev1.Workspace) bool {
			return w.GetActualState() == statev1.ActualState_ACTUAL_STATE_STARTING
		})

		now.pass(time.Hour)
		require.Contains(t, homeless.untilFailed("Unschedulable").GetMessage(), "no node of the cluster can take the workspace")
		require.Contains(t, hanging.untilFailed("PodNotEnding").GetMessage(), "pod "+hangingPod+" has not ended since")
		require.Contains(t, held.untilFailed("PodNotEnding").GetMessage(), "pod "+heldPod+" has not ended since")

		homeless.mend()
		hanging.patchPod(hangingPod, map[string]any{"annotations": map[string]any{faultAnnotation: nil}})
		held.patchPod(heldPod, map[string]any{"finalizers": nil})
		hanging.untilStopped()
		held.untilStopped()
		for _, w := range []*workspace{hanging, held} {
			states := w.follow().through(events.ActualStateFailed).states
			requirePath(t, states[len(states)-2:], events.ActualStateStopped, events.ActualStateFailed)
			w.start()
			w.untilRunning()
		}
	}
}

// patchPod changes the metadata of one of the workspace's pods, even of one on its way out.
func (w *workspace) patchPod(name string, metadata map[string]any) {
	w.t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	require.NoError(w.t, err)
	_, err = w.s.kube.CoreV1().Pods(w.namespace).Patch(w.t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{})
	require.NoError(w.t, err)
}
