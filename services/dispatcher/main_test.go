package dispatcher_test

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/dispatcher"
)

func TestWorkspaceLifecycle(t *testing.T) {
	t.Parallel()
	p := newFixture(t)
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
	require.Equal(t, "1", p.value(w))
	secret, err := p.kube.CoreV1().Secrets(w.Namespace).Get(ctx, "variables", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "hunter2", string(secret.Data["TOKEN"]))

	w.DesiredRevision, w.Target = 2, events.DesiredTargetStopped
	w.Manifests = []map[string]any{p.configMap(w, "more", "2")}
	p.desire(w)
	applied = next[events.Applied](p, "applied")
	require.Equal(t, 2, applied.DesiredRevision)
	require.Equal(
		t, []events.ObjectReference{{ApiVersion: "v1", Kind: "ConfigMap", Namespace: w.Namespace, Name: "files"}},
		applied.Pruned,
	)

	w.DesiredRevision, w.Target, w.Manifests, w.Secrets = 3, events.DesiredTargetTerminated, nil, nil
	p.desire(w)
	terminating := next[events.Terminating](p, "terminating")
	require.NotEmpty(t, terminating.Remaining)
	terminated := until[events.Terminated](p, "terminated")
	require.Equal(t, 3, terminated.DesiredRevision)
	_, err = p.kube.CoreV1().Namespaces().Get(ctx, w.Namespace, metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "the namespace is deleted before the terminated event is published")
}

func TestRejectionIsReportedOnceUntilNextRevision(t *testing.T) {
	t.Parallel()
	p := newFixture(t)
	p.start(p.config())
	w := p.workspace()
	manifest := p.configMap(w, "files", "1")
	w.Manifests = []map[string]any{
		manifest, {"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "p", "namespace": w.Namespace}},
	}
	p.desire(w)
	failed := next[events.ApplyFailed](p, "apply_failed")
	require.Equal(t, "NotAllowed", failed.Reason)
	require.Zero(t, failed.RetryAfterMs)
	w.DesiredRevision, w.Manifests = 2, []map[string]any{manifest}
	p.desire(w)
	require.Equal(t, 2, next[events.Applied](p, "applied").DesiredRevision)
}

func TestFailuresAreReportedAndRetried(t *testing.T) {
	t.Parallel()
	p := newFixture(t)
	p.start(p.config())
	w := p.workspace()
	w.Manifests = []map[string]any{p.configMap(w, "files", "1")}
	w.Secrets = []events.SecretReference{{Name: "variables", Digest: "later"}}
	p.desire(w)
	attempt := 0
	for range 3 {
		failed := next[events.ApplyFailed](p, "apply_failed")
		require.Equal(t, "SecretRefused", failed.Reason)
		require.Greater(t, failed.Attempt, attempt, "a later result replaces one that waits")
		attempt = failed.Attempt
		require.Positive(t, failed.RetryAfterMs)
		require.Contains(t, failed.Message, "there is no such secret")
	}
	p.secret("later", "v")
	require.Greater(t, until[events.Applied](p, "applied").Attempt, attempt)
}

func TestNewLeaderReadsEverythingAgain(t *testing.T) {
	t.Parallel()
	p := newFixture(t)
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
	require.Equal(t, "1", p.value(w))

	// A standby takes over.
	p.start(p.config())
	stop()
	for range 2 {
		next[events.Applied](p, "applied")
	}
}

func TestResultsWaitForNATS(t *testing.T) {
	t.Parallel()
	p := newFixture(t)
	cfg := p.config()
	cfg.PublishTimeout = 0 // a result in flight when NATS stops waits for its end
	addrs, _ := p.start(cfg)
	w := p.workspace()
	w.Manifests = []map[string]any{p.configMap(w, "files", "1")}
	w.Secrets = []events.SecretReference{{Name: "variables", Digest: "later"}}
	p.desire(w)
	next[events.ApplyFailed](p, "apply_failed")

	p.server.Down()
	require.Eventually(t, func() bool { return readiness(t, addrs["ops"]) != ready }, timeout, tick)
	p.secret("later", "v")
	require.NoError(t, p.server.Restart())
	until[events.Applied](p, "applied")
	require.Eventually(t, func() bool { return readiness(t, addrs["ops"]) == ready }, timeout, tick)
}

func TestConsumerThatDoesNotAnswerIsReported(t *testing.T) {
	t.Parallel()
	p := newFixture(t)
	streams := []string{topology.StreamDesired, topology.StreamControl}
	remove := func() {
		for _, stream := range streams {
			require.NoError(t, p.js.DeleteConsumer(p.context(), stream, topology.DispatcherConsumer(p.agent)))
		}
	}
	remove()
	addrs, _ := p.start(p.config())
	await := func(condition func(report string) bool) {
		t.Helper()
		require.Eventually(t, func() bool { return condition(readiness(t, addrs["ops"])) }, timeout, tick)
	}
	for range 2 { // when the dispatcher starts, and while it reads
		await(func(report string) bool {
			return !slices.ContainsFunc(streams, func(stream string) bool {
				named := fmt.Sprintf("consumer %s of stream %s", topology.DispatcherConsumer(p.agent), stream)
				return !strings.Contains(report, named)
			})
		})
		require.NoError(t, topology.EnsureAgent(p.context(), p.js, cell, p.agent))
		await(func(report string) bool { return report == ready })
		remove()
	}
}

// ready is the readiness of a service without a fault.
const ready = ""

// readiness returns what /readyz reports, or ready.
func readiness(t *testing.T, addr string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/readyz", nil)
	require.NoError(t, err)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	if response.StatusCode == http.StatusOK {
		return ready
	}
	return string(body)
}

func TestTraceContinuesToTheResult(t *testing.T) {
	t.Parallel()
	p := newFixture(t)
	p.start(p.config())
	w := p.workspace()
	w.Manifests = []map[string]any{p.configMap(w, "files", "1")}
	p.desire(w, "traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	result := <-p.applied
	require.Contains(t, result.Extensions()["traceparent"], "-0af7651916cd43dd8448eb211c80319c-")
	require.NotContains(t, result.Extensions()["traceparent"], "b7ad6b7169203331")
}

func TestMainRejectsInvalidConfig(t *testing.T) {
	t.Parallel()
	cfg := dispatcher.DefaultConfig()
	cfg.Workers = 0
	cfg.Lease.RenewDeadline = cfg.Lease.Duration
	err := dispatcher.Main(t.Context(), cfg)
	require.ErrorContains(t, err, "credentials_file")
	require.ErrorContains(t, err, "workers")
	require.ErrorContains(t, err, "lease.duration")
}

func TestAppliedObjectsAreReported(t *testing.T) {
	t.Parallel()
	p := newFixture(t)
	p.start(p.config())
	w := p.workspace()
	w.Manifests = []map[string]any{p.deployment(w)}
	p.desire(w)
	applied := next[events.Applied](p, "applied")
	live, err := p.kube.AppsV1().Deployments(w.Namespace).Get(p.context(), "w", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, string(live.UID), applied.DeploymentUID)
	require.Equal(t, int(live.Generation), applied.DeploymentGeneration)
	require.Empty(t, applied.Repaired)
}

func TestResyncRequestStartsARepair(t *testing.T) {
	t.Parallel()
	p := newFixture(t)
	p.control(
		cell.ControlResync(p.agent), events.TypeResyncRequested,
		events.ResyncRequested{Nonce: "before", Cause: events.ResyncRequestCauseOperator},
	)
	addrs, _ := p.start(p.config())
	var all []events.DesiredWorkspace
	for range 5 {
		w := p.workspace()
		w.Manifests = []map[string]any{p.configMap(w, "files", "mine")}
		all = append(all, w)
		p.desire(w)
		next[events.Applied](p, "applied")
	}
	repairs := func() string {
		for line := range strings.Lines(get(t, "http://"+addrs["ops"]+"/metrics")) {
			if count, found := strings.CutPrefix(line, "lockstep_dispatcher_repairs_total "); found {
				return strings.TrimSpace(count)
			}
		}
		return ""
	}
	require.Equal(t, "0", repairs(), "a resync request from before the session starts no repair")

	// An invalid message does not block others.
	p.control(cell.ControlResync(p.agent), events.TypeResyncRequested, map[string]any{"nonce": 1})
	changed := all[2]
	edited, err := p.kube.CoreV1().ConfigMaps(changed.Namespace).Get(p.context(), "files", metav1.GetOptions{})
	require.NoError(t, err)
	edited.Data["key"] = "theirs"
	_, err = p.kube.CoreV1().ConfigMaps(changed.Namespace).Update(p.context(), edited, metav1.UpdateOptions{})
	require.NoError(t, err)
	p.control(
		cell.ControlResync(p.agent), events.TypeResyncRequested,
		events.ResyncRequested{Nonce: "after", Cause: events.ResyncRequestCauseOperator},
	)
	repaired := next[events.Applied](p, "applied")
	require.Equal(t, changed.WorkspaceID, repaired.WorkspaceID)
	require.Equal(
		t, []events.ObjectReference{{ApiVersion: "v1", Kind: "ConfigMap", Namespace: changed.Namespace, Name: "files"}},
		repaired.Repaired,
	)
	require.Equal(t, "mine", p.value(changed))
	require.Equal(t, "1", repairs())

	// A changed interval takes effect at once; only the changed workspace is reported.
	require.NoError(t, p.kube.CoreV1().ConfigMaps(all[4].Namespace).Delete(p.context(), "files", metav1.DeleteOptions{}))
	p.control(
		cell.ControlConfig(p.agent), events.TypeAgentConfig,
		events.AgentConfig{ConfigRevision: 1, FullResyncIntervalMs: 1000, UnschedulablePatienceMs: 1},
	)
	repaired = next[events.Applied](p, "applied")
	require.Equal(t, all[4].WorkspaceID, repaired.WorkspaceID)
	require.Equal(t, "mine", p.value(all[4]))
}

func TestRejectedRevisionDoesNotBlockLowerOne(t *testing.T) {
	t.Parallel()
	p := newFixture(t)
	p.start(p.config())
	w := p.workspace()
	good := []map[string]any{p.configMap(w, "files", "1")}
	for _, bad := range [][]map[string]any{
		{{"no": "metadata"}},
		{{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "p", "namespace": w.Namespace}}},
	} {
		w.DesiredRevision, w.Manifests = 1<<50, bad
		p.desire(w)
		require.Equal(t, 1<<50, next[events.ApplyFailed](p, "apply_failed").DesiredRevision)
	}
	w.DesiredRevision, w.Manifests = 2, good
	p.desire(w)
	require.Equal(t, 2, next[events.Applied](p, "applied").DesiredRevision)
	require.Equal(t, "1", p.value(w))
}

func TestOnlyAllowedKindsAreApplied(t *testing.T) {
	t.Parallel()
	p := newFixture(t)
	cfg := p.config()
	cfg.AllowedKinds = []string{"Namespace", "ConfigMap"}
	p.start(cfg)
	w := p.workspace()
	w.Manifests = []map[string]any{p.configMap(w, "files", "1"), p.deployment(w)}
	p.desire(w)
	failed := next[events.ApplyFailed](p, "apply_failed")
	require.Equal(t, "NotAllowed", failed.Reason)
	require.Contains(
		t, failed.Message,
		"Deployment "+w.Namespace+"/w: this agent is configured to apply only objects of the kinds Namespace, ConfigMap",
	)
	_, err := p.kube.CoreV1().Namespaces().Get(p.context(), w.Namespace, metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "none of its objects is applied")

	w.DesiredRevision, w.Manifests = 2, w.Manifests[:1]
	p.desire(w)
	next[events.Applied](p, "applied")
	w.DesiredRevision, w.Manifests = 3, []map[string]any{p.configMap(w, "files", "2"), p.deployment(w)}
	p.desire(w)
	next[events.ApplyFailed](p, "apply_failed")
	require.Equal(t, "1", p.value(w), "none of its objects is applied")
}

func TestSupersededRevisionReportsRevisionOfCluster(t *testing.T) {
	t.Parallel()
	p := newFixture(t)
	_, stop := p.start(p.config())
	w := p.workspace()
	w.DesiredRevision, w.Manifests = 9, []map[string]any{p.configMap(w, "files", "1")}
	p.desire(w)
	next[events.Applied](p, "applied")
	stop()
	w.DesiredRevision = 4
	p.desire(w)
	p.start(p.config())
	failed := next[events.ApplyFailed](p, "apply_failed")
	require.Equal(t, "Superseded", failed.Reason)
	require.Equal(t, 9, failed.ClusterRevision)
}

func TestAllowedKindsMustBeKnown(t *testing.T) {
	t.Parallel()
	cfg := dispatcher.DefaultConfig()
	cfg.AllowedKinds = []string{"Deployment", "Pod"}
	err := dispatcher.Main(t.Context(), cfg)
	require.ErrorContains(t, err, `"Pod" is not one of Namespace, ServiceAccount`)
	require.ErrorContains(t, err, "Namespace is missing")
}
