package deploys_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/services/watcher"
	"lockstep.internal/tools/stack"
)

// TestRelists interrupts a watcher's watches. They resume where they were or, if that version has
// expired, list anew.
func TestRelists(t *testing.T) {
	t.Parallel()
	var proxy *apiServerProxy
	configure := func(_ string, config any) {
		if cfg, is := config.(*watcher.Config); is {
			if proxy == nil {
				proxy = newAPIServerProxy(t, cfg.Kubernetes.Kubeconfig)
			}
			cfg.Kubernetes.Kubeconfig = proxy.kubeconfig
		}
	}
	s := fixture.StartWith(t, stack.Options{Workloads: watcher.Workloads{Enabled: true}, Configure: configure})
	of := func(test func(*fixture.System, *apiServerProxy)) func(*fixture.System) {
		return func(s *fixture.System) { test(s, proxy) }
	}
	s.Sequence(
		fixture.Case{Name: "a resumed watch loses nothing", Test: of(resumedWatchLosesNothing)},
		fixture.Case{Name: "a restarted watch publishes nothing without a change", Test: of(restartedWatchPublishesNothing)},
		fixture.Case{Name: "missed rollouts are reported as a gap", Test: of(missedRolloutsAreReportedAsGap)},
		fixture.Case{Name: "the history is consistent", Test: fixture.RequireConsistentFacts},
	)
}

// awaitComplete waits until the Deployment is complete at a revision.
func awaitComplete(w *fixture.Workload, revision string) {
	w.T.Helper()
	fixture.AwaitCluster(w.T, "revision "+revision+" is complete", func(ctx context.Context) (bool, error) {
		o, err := w.Kube.AppsV1().Deployments(w.Namespace).Get(ctx, fixture.WorkloadName, metav1.GetOptions{})
		return err == nil && o.Annotations[fixture.RevisionAnnotation] == revision &&
			o.Status.ObservedGeneration >= o.Generation &&
			fixture.AllEqual(*o.Spec.Replicas, o.Status.Replicas, o.Status.UpdatedReplicas, o.Status.AvailableReplicas), err
	})
}

func resumedWatchLosesNothing(s *fixture.System, proxy *apiServerProxy) {
	w := s.NewDeployment("watch-goes-on", 2)
	proxy.block()
	w.SetImage(fixture.SecondImage)
	awaitComplete(w, "2")
	w.SetImage(fixture.ThirdImage)
	awaitComplete(w, "3")
	proxy.unblock()
	w.RequireFacts("started 1", "completed 1", "started 2", "completed 2", "started 3", "completed 3")
}

func restartedWatchPublishesNothing(s *fixture.System, proxy *apiServerProxy) {
	idle, flying := s.NewDeployment("relisted-idle", 1), s.NewDeployment("relisted-in-flight", 1)
	other := s.NewDeployment("relisted-other", 1)
	flying.SetImage(fixture.NeverReadyImage)
	facts := []string{"started 1", "completed 1", "started 2"}
	flying.RequireFacts(facts...)
	for range 2 {
		proxy.block()
		proxy.unblockExpired()
	}
	other.SetImage(fixture.SecondImage)
	other.RequireFacts("started 1", "completed 1", "started 2", "completed 2") // the watch works again
	idle.Scale(2)
	idle.RequireFacts("started 1", "completed 1", "scale_started 1→2", "scale_completed 1→2")
	flying.SetImage(fixture.SecondImage)
	flying.RequireFacts(append(facts, "superseded 2", "started 3", "completed 3")...)
}

func missedRolloutsAreReportedAsGap(s *fixture.System, proxy *apiServerProxy) {
	flying, gone := s.NewDeployment("missed-in-flight", 2), s.NewDeployment("missed-deletion", 2)
	idle := s.NewDeployment("missed-deletion-idle", 1)
	made := s.NewWorkload("missed-creation", "deployment")
	facts := []string{"started 1", "completed 1", "started 2"}
	for _, w := range []*fixture.Workload{flying, gone} {
		w.SetImage(fixture.NeverReadyImage)
		w.RequireFacts(facts...)
	}
	proxy.block()
	for _, w := range []*fixture.Workload{flying, gone} {
		w.SetImage(fixture.SecondImage)
		awaitComplete(w, "3")
	}
	flying.SetImage(fixture.ThirdImage)
	awaitComplete(flying, "4")
	gone.Delete()
	idle.Delete()
	_, err := s.Kube.AppsV1().Deployments(made.Namespace).Create(s.T.Context(), &appsv1.Deployment{
		ObjectMeta: fixture.WorkloadMeta(),
		Spec:       appsv1.DeploymentSpec{Selector: fixture.WorkloadSelector(), Template: fixture.WorkloadPods()},
	}, metav1.CreateOptions{})
	require.NoError(s.T, err)
	awaitComplete(made, "1")
	made.SetImage(fixture.SecondImage)
	awaitComplete(made, "2")
	proxy.unblockExpired()
	flying.RequireFacts(append(facts, "gap [2 3]", "unknown 2", "started 3", "unknown 3", "started 4", "completed 4")...)
	gone.RequireFacts(append(facts, "gap [2]", "unknown 2", "removed")...)
	idle.RequireFacts("started 1", "completed 1", "gap []", "removed")
	made.RequireFacts("gap [1]", "started 1", "unknown 1", "started 2", "completed 2")
}
