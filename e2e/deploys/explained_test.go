package deploys_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/sink/github/githubtest"
)

const (
	repository   = "acme/shop"
	missingImage = "registry.example/missing:1"
)

// gitHub receives the comments of the shared system.
var gitHub *githubtest.Server

// writeSinks starts GitHub's server and returns the file of the sinks.
func writeSinks(tb testing.TB) string {
	tb.Helper()
	gitHub = githubtest.Start(tb)
	dir := tb.TempDir()
	token, sinks := filepath.Join(dir, "token"), filepath.Join(dir, "sinks.yaml")
	require.NoError(tb, os.WriteFile(token, []byte(githubtest.Token), 0o600))
	content := fmt.Sprintf("previews:\n  type: github_comment\n  network: {allow_private: true}\n  github:\n"+
		"    api_url: %s\n    token_file: %s\n    source: {repository: %s}\n    pull_request_pattern: '^pr-([0-9]+)$'\n",
		gitHub.URL, token, repository)
	require.NoError(tb, os.WriteFile(sinks, []byte(content), 0o600))
	return sinks
}

// last returns the newest fact with the name.
func last(w *fixture.Workload, name events.Fact) events.DeployFact {
	w.T.Helper()
	var found events.DeployFact
	for _, f := range w.Facts() {
		if f.Fact == name {
			found = f
		}
	}
	require.NotEmpty(w.T, found.Fact, "no fact %s", name)
	return found
}

func TestExplainedMissingImage(t *testing.T) {
	s := shared.Parallel(t)
	w := s.NewDeployment("missing-image", 1)
	w.SetImage(missingImage)
	facts := []string{"started 1", "completed 1", "started 2", "stalled 2"}
	w.RequireFacts(facts...)
	require.Equal(t, "ErrImagePull", last(w, events.FactStalled).Reason)
	require.Equal(t, "image "+missingImage+" cannot be pulled: not found", last(w, events.FactStalled).Message)
	require.Zero(t, last(w, events.FactStarted).Counts.Updated)
	w.EndFaults()
	w.RequireFacts(append(facts, "recovered 2", "completed 2")...)
}

func TestExplainedCrashLoopOfAllKinds(t *testing.T) {
	s := shared.Parallel(t)
	for _, w := range []*fixture.Workload{
		newDaemonSet(s, "crashing-daemons"),
		newStatefulSet(s, "crashing-stateful",
			appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType}),
	} {
		w.SetImage("registry.example/crash-loop:1")
		facts := []string{"started 1", "completed 1", "started 2", "stalled 2"}
		w.RequireFacts(facts...)
		require.Equal(t, "container main keeps exiting: its command failed with exit code 1",
			last(w, events.FactStalled).Message)
		w.Delete()
		w.RequireFacts(append(facts, "cancelled 2")...)
	}
}

func TestExplainedUnschedulable(t *testing.T) {
	s := shared.Parallel(t)
	w := s.NewDeployment("no-node", 1)
	w.SetImage("registry.example/unschedulable:1")
	facts := []string{"started 1", "completed 1", "started 2", "stalled 2"}
	w.RequireFacts(facts...)
	require.Contains(t, last(w, events.FactStalled).Message, "no node of the cluster can take its pods: 0/")
	w.Delete()
	w.RequireFacts(append(facts, "cancelled 2")...)
}

// TestExplainedPreview follows a preview of two Deployments to the comment on its pull request.
func TestExplainedPreview(t *testing.T) {
	s := shared.Parallel(t)
	const failing, fixed = "9fceb02d0ae598e95dc970b74767f19372d61af8", "1d2e3f4d0ae598e95dc970b74767f19372d61af8"
	pull := gitHub.OpenPull(repository, 7)
	w := s.NewWorkload("preview", "deployment")
	newPreview(w, "pr-7", failing, map[string]string{fixture.WorkloadName: missingImage, "api": fixture.FirstImage})
	awaitComment(s, pull, "could not be started", "deployment web", missingImage, "not found", failing[:7])

	patch := fmt.Sprintf(`{"metadata":{"annotations":{"lockstep.dev/commit":%q}},"spec":{"template":{"spec":{`+
		`"containers":[{"name":"main","image":%q}]}}}}`, fixed, fixture.SecondImage)
	for _, name := range []string{fixture.WorkloadName, "api"} {
		_, err := s.Kube.AppsV1().Deployments(w.Namespace).Patch(t.Context(), name, types.StrategicMergePatchType,
			[]byte(patch), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	awaitComment(s, pull, "is ready", "https://pr-7.example.com", fixed[:7])
	w.RequireFacts("started 1", "stalled 1", "superseded 1", "started 2", "completed 2")
}

// newPreview creates Deployments with these images as an environment.
func newPreview(w *fixture.Workload, group, commit string, images map[string]string) {
	w.T.Helper()
	for name, image := range images {
		labels := map[string]string{"app": name}
		_, err := w.Kube.AppsV1().Deployments(w.Namespace).Create(w.T.Context(), &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{
				"lockstep.dev/deploy-group": group, "lockstep.dev/deploy-group-size": strconv.Itoa(len(images)),
				"lockstep.dev/commit": commit, "lockstep.dev/url": "https://" + group + ".example.com",
			}},
			Spec: appsv1.DeploymentSpec{
				Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: labels},
					Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image}}},
				},
			},
		}, metav1.CreateOptions{})
		require.NoError(w.T, err)
	}
}

// TestExplainedBlockedPreview follows a preview that a quota blocks to the comment on its pull request.
func TestExplainedBlockedPreview(t *testing.T) {
	s := shared.Parallel(t)
	const commit = "2c3d4e5d0ae598e95dc970b74767f19372d61af8"
	pull := gitHub.OpenPull(repository, 8)
	w := s.NewWorkload("blocked-preview", "deployment")
	limitPods(w, 0)
	newPreview(w, "pr-8", commit, map[string]string{fixture.WorkloadName: fixture.FirstImage})
	awaitComment(s, pull, "could not be started", "deployment web", "a quota of the cluster does not allow its pods",
		commit[:7])
	require.NoError(t, s.Kube.CoreV1().ResourceQuotas(w.Namespace).Delete(t.Context(), quotaName, metav1.DeleteOptions{}))
	awaitComment(s, pull, "is ready", "https://pr-8.example.com", commit[:7])
	w.RequireFacts("started 1", "blocked 1", "unblocked 1", "completed 1")
}

// awaitComment waits until the only comment of the pull request has the texts, without their markup.
func awaitComment(s *fixture.System, pull *githubtest.Pull, texts ...string) {
	s.T.Helper()
	require.EventuallyWithT(s.T, func(c *assert.CollectT) {
		bodies := gitHub.Comments(pull)
		require.Len(c, bodies, 1)
		body := strings.NewReplacer("\\", "", "\u200b", "").Replace(bodies[0])
		for _, text := range texts {
			require.Contains(c, body, text)
		}
	}, fixture.Timeout, fixture.PollInterval)
}
