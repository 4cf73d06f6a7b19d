package kube_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/dispatcher/desired"
	"lockstep.internal/services/dispatcher/failure"
)

// The messages must match errors of a real API server, so the tests provoke each error.

func TestAPIErrorsAreExplained(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	ctx := testContext(t)
	leader := b.leader(t, admin(t))
	w := b.with(b.workspace(), 1, configMap("files", "1"), volume("data", "2Gi"), deployment(1), service("w"))
	_, err := leader.Apply(ctx, w, b.secrets)
	require.NoError(t, err)
	revision := int64(1)
	apply := func(objects ...desired.Object) *failure.Failure {
		revision++
		_, err := leader.Apply(ctx, b.with(w, revision, objects...), b.secrets)
		var f *failure.Failure
		require.ErrorAs(t, err, &f)
		t.Logf("%s: %s", f.Reason, f.Message)
		require.NotNil(t, f.Object)
		require.False(t, f.Final)
		return f
	}

	f := apply(object(
		"v1", "Service", "w",
		map[string]any{"spec": map[string]any{"ports": []any{map[string]any{"port": int64(70000)}}}},
	))
	require.Equal(t, failure.Invalid, f.Reason)
	require.Contains(t, f.Message, "spec.ports[0].port")

	f = apply(object("apps/v1", "Deployment", "w", map[string]any{"spec": map[string]any{"replica": int64(1)}}))
	require.Equal(t, failure.Invalid, f.Reason)
	require.Contains(t, f.Message, "replica")

	other := deployment(1)
	spec := other.Manifest["spec"].(map[string]any)
	spec["selector"] = map[string]any{"matchLabels": map[string]any{"app": "other"}}
	spec["template"].(map[string]any)["metadata"] = map[string]any{"labels": map[string]any{"app": "other"}}
	f = apply(other)
	require.Equal(t, failure.Immutable, f.Reason)
	require.Contains(t, f.Message, "spec.selector")

	f = apply(object("v1", "PersistentVolumeClaim", "data", map[string]any{"spec": map[string]any{
		"accessModes": []any{"ReadWriteMany"}, "resources": map[string]any{"requests": map[string]any{"storage": "2Gi"}},
	}}))
	require.Equal(t, failure.Immutable, f.Reason)

	_, err = b.admin.CoreV1().ResourceQuotas(w.Namespace).Create(ctx, &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "limit"},
		Spec: corev1.ResourceQuotaSpec{
			Hard: corev1.ResourceList{
				"persistentvolumeclaims": resource.MustParse("1"), "requests.storage": resource.MustParse("3Gi"),
			},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	// The API server enforces a quota a moment after the controller has counted what is used.
	require.Eventually(t, func() bool {
		_, err := b.admin.CoreV1().PersistentVolumeClaims(w.Namespace).Create(ctx, &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "probe"},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
				},
			},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil && strings.Contains(err.Error(), "exceeded quota")
	}, timeout, tick)
	f = apply(volume("more", "1Gi"))
	require.Equal(t, failure.QuotaExceeded, f.Reason)
	require.Contains(t, f.Message, "persistentvolumeclaims=1")
	require.Equal(t, "more", f.Object.Name)
}

func TestPermissionAndWebhookErrorsAreExplained(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	ctx := testContext(t)
	w := b.with(b.workspace(), 1, configMap("files", "1"))
	_, err := b.leader(t, admin(t)).Apply(ctx, w, b.secrets)
	require.NoError(t, err)

	// This user has no permissions.
	nobody := admin(t)
	nobody.Impersonate = rest.ImpersonationConfig{UserName: "nobody"}
	client := newClient(t, nobody)
	require.Equal(
		t, failure.Forbidden, failure.Explain(client.EnsureAgentNamespace(ctx, b.agent), desired.Reference{}).Reason,
	)

	fail := admissionv1.Fail
	none := admissionv1.SideEffectClassNone
	url, second := "https://127.0.0.1:1/refuse", int32(1)
	hook := &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: w.Namespace},
		Webhooks: []admissionv1.ValidatingWebhook{
			{
				Name:                    "broken.example.test",
				FailurePolicy:           &fail,
				SideEffects:             &none,
				TimeoutSeconds:          &second,
				AdmissionReviewVersions: []string{"v1"},
				ClientConfig:            admissionv1.WebhookClientConfig{URL: &url},
				NamespaceSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{desired.LabelWorkspace: w.ID}},
				Rules: []admissionv1.RuleWithOperations{
					{
						Operations: []admissionv1.OperationType{admissionv1.OperationAll},
						Rule: admissionv1.Rule{
							APIGroups:   []string{""},
							APIVersions: []string{"v1"},
							Resources:   []string{"configmaps"},
						},
					},
				},
			},
		},
	}
	_, err = b.admin.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(ctx, hook, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, b.admin.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(
			context.Background(), w.Namespace, metav1.DeleteOptions{},
		))
	})
	leader := b.leader(t, admin(t))
	revision := int64(1)
	require.Eventually(t, func() bool {
		revision++
		_, err = leader.Apply(ctx, b.with(w, revision, configMap("files", time.Now().String())), b.secrets)
		return err != nil
	}, timeout, tick, "the webhook takes effect a moment after it was made")
	require.Equal(t, failure.AdmissionUnavailable, reason(t, err))
	require.ErrorContains(t, err, "broken.example.test")
}

func TestUnreachableClusterIsExplained(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.leader(t, admin(t))
	cfg := admin(t)
	cfg.Host = "https://127.0.0.1:1"
	unreachable := newClient(t, cfg)
	require.Error(t, unreachable.Check(testContext(t)))
	require.Equal(
		t, failure.Unreachable,
		failure.Explain(unreachable.EnsureAgentNamespace(testContext(t), b.agent), desired.Reference{}).Reason,
	)

	require.NoError(t, newClient(t, admin(t)).Check(testContext(t)))
	w := b.with(b.workspace(), 1, configMap("files", "1"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	_, err := b.leader(t, admin(t)).Apply(ctx, w, b.secrets)
	require.Equal(t, failure.Timeout, reason(t, err))
}

// The reason of a rejected Secret is reported without the message of the API server.
func TestRejectedSecretIsNotQuoted(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	w := b.with(b.workspace(), 1, configMap("files", "1"))
	w.Secrets = []events.SecretReference{{Name: "variables", Digest: "d1"}}
	_, err := b.leader(t, admin(t)).Apply(testContext(t), w, invalidKeySecrets{})
	require.Equal(t, failure.Invalid, reason(t, err))
	require.ErrorContains(t, err, "data[no key]")
	require.NotContains(t, err.Error(), "hunter2")
	require.NotContains(t, err.Error(), "must consist of", "the API server's words")
}

// invalidKeySecrets returns a value with an invalid Secret key.
type invalidKeySecrets struct{}

func (invalidKeySecrets) Values(context.Context, string, events.SecretReference) (map[string][]byte, error) {
	return map[string][]byte{"no key": []byte("hunter2")}, nil
}
