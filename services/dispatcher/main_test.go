package dispatcher_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/dispatcher"
)

func TestAWorkspacesWholeLife(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.start(p.config())
	ctx := p.context()

	w := p.workspace()
	w.Manifests = []map[string]any{p.configMap(w, "files", "1")}
	w.Secrets = []events.SecretReference{{Name: "variables", Digest: "d1"}}
	p.secret("d1", "hunter2")
	p.desire(w)
	applied := next[events.Applied](p, "applied")
	require.Equal(t, w.WorkspaceID, applied.WorkspaceID)
	require.Equal(t, 1, applied.DesiredRevision)
	require.Equal(t, 1, applied.Attempt)
	require.Len(t, applied.Objects, 3)
	require.Equal(t, "1", p.value(w, "files"))
	secret, err := p.kube.CoreV1().Secrets(w.Namespace).Get(ctx, "variables", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "hunter2", string(secret.Data["TOKEN"]))

	w.DesiredRevision, w.Target = 2, events.DesiredTargetStopped
	w.Manifests = []map[string]any{p.configMap(w, "more", "2")}
	p.desire(w)
	applied = next[events.Applied](p, "applied")
	require.Equal(t, 2, applied.DesiredRevision)
	require.Equal(t, []events.ObjectReference{{ApiVersion: "v1", Kind: "ConfigMap", Namespace: w.Namespace, Name: "files"}}, applied.Pruned)

	w.DesiredRevision, w.Target, w.Manifests, w.Secrets = 3, events.DesiredTargetTerminated, nil, nil
	p.desire(w)
	terminating := next[events.Terminating](p, "terminating")
	require.NotEmpty(t, terminating.Remaining)
	terminated := until[events.Terminated](p, "terminated")
	require.Equal(t, 3, terminated.DesiredRevision)
	_, err = p.kube.CoreV1().Namespaces().Get(ctx, w.Namespace, metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "really gone when it is told")
}

func TestWhatIsRefusedIsToldOnceAndHealsWithTheNextRevision(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.start(p.config())
	w := p.workspace()
	manifest := p.configMap(w, "files", "1")
	w.Manifests = []map[string]any{manifest, {"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "p", "namespace": w.Namespace}}}
	p.desire(w)
	failed := next[events.ApplyFailed](p, "apply_failed")
	require.Equal(t, "NotAllowed", failed.Reason)
	require.Zero(t, failed.RetryAfterMs)
	w.DesiredRevision, w.Manifests = 2, []map[string]any{manifest}
	p.desire(w)
	require.Equal(t, 2, next[events.Applied](p, "applied").DesiredRevision)
}

func TestFailuresAreToldAndTriedAgain(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.start(p.config())
	w := p.workspace()
	w.Manifests = []map[string]any{p.configMap(w, "files", "1")}
	w.Secrets = []events.SecretReference{{Name: "variables", Digest: "later"}}
	p.desire(w)
	for attempt := 1; attempt <= 3; attempt++ {
		failed := next[events.ApplyFailed](p, "apply_failed")
		require.Equal(t, "SecretRefused", failed.Reason)
		require.Equal(t, attempt, failed.Attempt)
		require.Positive(t, failed.RetryAfterMs)
		require.Contains(t, failed.Message, "there is no such secret")
	}
	p.secret("later", "v")
	require.Greater(t, until[events.Applied](p, "applied").Attempt, 3)
}

func TestANewLeaderIsToldEverythingAnew(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	_, stop := p.start(p.config())
	w := p.workspace()
	w.Manifests = []map[string]any{p.configMap(w, "files", "1")}
	p.desire(w)
	next[events.Applied](p, "applied")
	stop()

	require.NoError(t, p.kube.CoreV1().ConfigMaps(w.Namespace).Delete(p.context(), "files", metav1.DeleteOptions{}))
	other := p.workspace()
	other.Manifests = []map[string]any{p.configMap(other, "files", "1")}
	p.desire(other)
	_, stop = p.start(p.config())
	seen := map[string]bool{}
	for range 2 {
		seen[next[events.Applied](p, "applied").WorkspaceID] = true
	}
	require.Equal(t, map[string]bool{w.WorkspaceID: true, other.WorkspaceID: true}, seen)
	require.Equal(t, "1", p.value(w, "files"))

	// One that stands by takes over.
	p.start(p.config())
	stop()
	for range 2 {
		next[events.Applied](p, "applied")
	}
}

func TestResultsWaitForNATS(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	addrs, _ := p.start(p.config())
	w := p.workspace()
	w.Manifests = []map[string]any{p.configMap(w, "files", "1")}
	w.Secrets = []events.SecretReference{{Name: "variables", Digest: "later"}}
	p.desire(w)
	next[events.ApplyFailed](p, "apply_failed")

	p.server.Down()
	require.Eventually(t, func() bool { return status(t, addrs["ops"]) == http.StatusServiceUnavailable }, patience, tick)
	p.secret("later", "v")
	require.NoError(t, p.server.Restart())
	until[events.Applied](p, "applied")
	require.Eventually(t, func() bool { return status(t, addrs["ops"]) == http.StatusOK }, patience, tick)
}

func status(t *testing.T, addr string) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/readyz", nil)
	require.NoError(t, err)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	return response.StatusCode
}

func TestTheTraceGoesThrough(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.start(p.config())
	w := p.workspace()
	w.Manifests = []map[string]any{p.configMap(w, "files", "1")}
	p.desire(w, "traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	result := <-p.applied
	require.Contains(t, result.Extensions()["traceparent"], "-0af7651916cd43dd8448eb211c80319c-")
	require.NotContains(t, result.Extensions()["traceparent"], "b7ad6b7169203331")
}

func TestMainRefusesAConfigurationThatCannotWork(t *testing.T) {
	t.Parallel()
	cfg := dispatcher.DefaultConfig()
	cfg.Workers = 0
	cfg.Lease.RenewDeadline = cfg.Lease.Duration
	err := dispatcher.Main(t.Context(), cfg)
	require.ErrorContains(t, err, "credentials_file")
	require.ErrorContains(t, err, "workers")
	require.ErrorContains(t, err, "lease.duration")
}
