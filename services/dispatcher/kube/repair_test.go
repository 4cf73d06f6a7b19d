package kube_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/dispatcher/desired"
	"lockstep.internal/services/dispatcher/failure"
	"lockstep.internal/services/dispatcher/kube"
)

func (b *fixture) deployment(t *testing.T, w desired.Workspace) *appsv1.Deployment {
	t.Helper()
	found, err := b.admin.AppsV1().Deployments(w.Namespace).Get(testContext(t), "w", metav1.GetOptions{})
	require.NoError(t, err)
	return found
}

func TestApplyReportsTheDeployment(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	leader := b.leader(t, admin(t))
	w := b.with(b.workspace(), 1, configMap("files", "1"), deployment(0))
	applied, err := leader.Apply(testContext(t), w, b.secrets)
	require.NoError(t, err)
	live := b.deployment(t, w)
	require.Equal(t, live.UID, applied.DeploymentUID)
	require.Equal(t, live.Generation, applied.DeploymentGeneration)

	scaled, err := b.admin.AppsV1().Deployments(
		w.Namespace,
	).Patch(testContext(t), "w", types.MergePatchType, []byte(`{"spec":{"replicas":2}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.Greater(t, scaled.Generation, applied.DeploymentGeneration)
	applied, err = leader.Apply(testContext(t), b.with(w, 2, configMap("files", "1"), deployment(0)), b.secrets)
	require.NoError(t, err)
	require.Equal(t, b.deployment(t, w).Generation, applied.DeploymentGeneration)
	require.Greater(t, applied.DeploymentGeneration, scaled.Generation)
	require.Empty(t, applied.Repaired, "a new revision is no repair")
}

// TestRepairFindsChangesOfOthers changes each kind of object in each way. Leaders with a warm and with a cold cache
// repair it.
func TestRepairFindsChangesOfOthers(t *testing.T) {
	t.Parallel()
	const merge = types.MergePatchType
	for name, change := range map[string]struct {
		kind string
		make func(ctx context.Context, b *fixture, w desired.Workspace) error
	}{
		"nothing": {"", func(context.Context, *fixture, desired.Workspace) error { return nil }},
		"change status": {"", func(ctx context.Context, b *fixture, w desired.Workspace) error {
			_, err := b.admin.AppsV1().Deployments(w.Namespace).Patch(ctx, "w", merge,
				[]byte(`{"status":{"conditions":null,"collisionCount":3}}`), metav1.PatchOptions{}, "status")
			return err
		}},
		"add annotation": {"", func(ctx context.Context, b *fixture, w desired.Workspace) error {
			_, err := b.admin.CoreV1().Services(w.Namespace).Patch(ctx, "w", merge,
				[]byte(`{"metadata":{"annotations":{"theirs":"1"}}}`), metav1.PatchOptions{})
			return err
		}},
		"change ConfigMap value": {"ConfigMap", func(ctx context.Context, b *fixture, w desired.Workspace) error {
			_, err := b.admin.CoreV1().ConfigMaps(w.Namespace).Patch(ctx, "files", merge, []byte(`{"data":{"key":"theirs"}}`),
				metav1.PatchOptions{})
			return err
		}},
		"remove label": {"ConfigMap", func(ctx context.Context, b *fixture, w desired.Workspace) error {
			_, err := b.admin.CoreV1().ConfigMaps(w.Namespace).Patch(ctx, "files", merge,
				[]byte(`{"metadata":{"labels":{"lockstep.dev/note":null}}}`), metav1.PatchOptions{})
			return err
		}},
		"delete ConfigMap": {"ConfigMap", func(ctx context.Context, b *fixture, w desired.Workspace) error {
			return b.admin.CoreV1().ConfigMaps(w.Namespace).Delete(ctx, "files", metav1.DeleteOptions{})
		}},
		"change Service selector": {"Service", func(ctx context.Context, b *fixture, w desired.Workspace) error {
			_, err := b.admin.CoreV1().Services(w.Namespace).Patch(ctx, "w", merge,
				[]byte(`{"spec":{"selector":{"app":"theirs"}}}`), metav1.PatchOptions{})
			return err
		}},
		"scale Deployment": {"Deployment", func(ctx context.Context, b *fixture, w desired.Workspace) error {
			_, err := b.admin.AppsV1().Deployments(w.Namespace).Patch(ctx, "w", merge, []byte(`{"spec":{"replicas":3}}`),
				metav1.PatchOptions{}, "scale")
			return err
		}},
		"change Secret value": {"Secret", func(ctx context.Context, b *fixture, w desired.Workspace) error {
			_, err := b.admin.CoreV1().Secrets(w.Namespace).Patch(ctx, "variables", merge,
				[]byte(`{"stringData":{"TOKEN":"theirs"}}`), metav1.PatchOptions{})
			return err
		}},
		"remove Secret key": {"Secret", func(ctx context.Context, b *fixture, w desired.Workspace) error {
			_, err := b.admin.CoreV1().Secrets(w.Namespace).Patch(ctx, "variables", merge, []byte(`{"data":{"TOKEN":null}}`),
				metav1.PatchOptions{})
			return err
		}},
		"delete Secret": {"Secret", func(ctx context.Context, b *fixture, w desired.Workspace) error {
			return b.admin.CoreV1().Secrets(w.Namespace).Delete(ctx, "variables", metav1.DeleteOptions{})
		}},
	} {
		for _, memory := range []bool{true, false} {
			t.Run(name+map[bool]string{true: ", with a warm cache", false: ", with a cold cache"}[memory], func(t *testing.T) {
				t.Parallel()
				b := newFixture(t)
				ctx := testContext(t)
				leader := b.leader(t, admin(t))
				w := b.with(b.workspace(), 1, configMap("files", "mine"), service("w"), deployment(0))
				w.Objects[0].Manifest["metadata"].(map[string]any)["labels"].(map[string]any)["lockstep.dev/note"] = "mine"
				w.Secrets = []events.SecretReference{{Name: "variables", Digest: "d1"}}
				_, err := leader.Apply(ctx, w, b.secrets)
				require.NoError(t, err)
				asked := b.secrets.count()
				require.NoError(t, change.make(ctx, b, w))
				if !memory {
					leader = b.leader(t, admin(t))
				}
				repaired, err := leader.Repair(ctx, w, b.secrets)
				require.NoError(t, err)
				var kinds []string
				for _, object := range repaired.Repaired {
					kinds = append(kinds, object.Kind)
				}
				if change.kind == "" {
					require.Empty(t, kinds)
				} else {
					require.Equal(t, []string{change.kind}, kinds)
				}
				if change.kind != "Secret" {
					require.Equal(t, asked, b.secrets.count(), "Secret values are not requested without need")
				}
				b.requireAsDesired(t, w)
				again, err := leader.Repair(ctx, w, b.secrets)
				require.NoError(t, err)
				require.Empty(t, again.Repaired, "the second repair changes nothing")
			})
		}
	}
}

func (b *fixture) requireAsDesired(t *testing.T, w desired.Workspace) {
	t.Helper()
	ctx := testContext(t)
	files, err := b.admin.CoreV1().ConfigMaps(w.Namespace).Get(ctx, "files", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "mine", files.Data["key"])
	require.Equal(t, "mine", files.Labels["lockstep.dev/note"])
	variables, err := b.admin.CoreV1().Secrets(w.Namespace).Get(ctx, "variables", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "value of d1", string(variables.Data["TOKEN"]))
	svc, err := b.admin.CoreV1().Services(w.Namespace).Get(ctx, "w", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"app": "w"}, svc.Spec.Selector)
	require.Zero(t, *b.deployment(t, w).Spec.Replicas)
}

func TestRepairRestoresLabels(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	ctx := testContext(t)
	leader := b.leader(t, admin(t))
	w := b.with(b.workspace(), 1, configMap("files", "1"))
	_, err := leader.Apply(ctx, w, b.secrets)
	require.NoError(t, err)
	unlabel := []byte(`{"metadata":{"labels":null}}`)
	_, err = b.admin.CoreV1().ConfigMaps(
		w.Namespace,
	).Patch(ctx, "files", types.MergePatchType, unlabel, metav1.PatchOptions{})
	require.NoError(t, err)
	_, err = b.leader(t, admin(t)).Repair(ctx, w, b.secrets)
	require.Equal(t, failure.Conflict, reason(t, err), "another leader treats it as a foreign object")
	repaired, err := leader.Repair(ctx, w, b.secrets)
	require.NoError(t, err)
	require.Len(t, repaired.Repaired, 1)
	require.Equal(t, []string{"files"}, b.existing(t, w))
}

// applyHook is a transport that runs a function after the last object of a workspace was applied.
type applyHook struct {
	next http.RoundTripper
	path string
	do   func()

	once sync.Once
}

func (m *applyHook) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := m.next.RoundTrip(request)
	if err == nil && request.Method == http.MethodPatch && strings.HasSuffix(request.URL.Path, m.path) {
		m.once.Do(m.do)
	}
	return response, err
}

// WrappedRoundTripper lets idle connections be closed.
func (m *applyHook) WrappedRoundTripper() http.RoundTripper { return m.next }

// TestApplyFailsInATerminatingNamespace deletes the namespace when the last object
// has been applied: none of them has been deleted yet.
func TestApplyFailsInATerminatingNamespace(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	ctx := testContext(t)
	w := b.with(b.workspace(), 1, configMap("files", "1"))
	m := &applyHook{path: "/configmaps/files", do: func() {
		err := b.admin.CoreV1().Namespaces().Delete(ctx, w.Namespace, metav1.DeleteOptions{})
		if err != nil {
			t.Error(err)
		}
	}}
	cfg := admin(t)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		m.next = next
		return m
	})
	client := newClient(t, cfg)
	require.NoError(t, client.EnsureAgentNamespace(ctx, b.agent))
	leader := kube.NewCluster(client, b.policy, kube.NewNamespaces(client, b.agent, func(string) {}))
	_, err := leader.Apply(ctx, w, b.secrets)
	require.Contains(t, []failure.Reason{failure.NamespaceTerminating, failure.NamespaceMissing}, reason(t, err))
	require.Eventually(t, func() bool {
		_, err := leader.Apply(ctx, w, b.secrets)
		return err == nil
	}, timeout, tick, "it is made again")
	namespace, err := b.admin.CoreV1().Namespaces().Get(ctx, w.Namespace, metav1.GetOptions{})
	require.NoError(t, err)
	require.Nil(t, namespace.DeletionTimestamp)
	require.Equal(t, []string{"files"}, b.existing(t, w))
}

func TestTerminateDeletesAnOrphanByItsLabels(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		id        string
		ownsSpace bool
	}{
		"in its own namespace":              {"", true},
		"in a foreign namespace":            {"", false},
		"with an id that is not a DNS name": {"Not_a.name", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newFixture(t)
			ctx := testContext(t)
			w := b.workspace()
			if test.id != "" {
				w.ID = test.id
			}
			owned := desired.Owner{Agent: b.agent, Workspace: w.ID}.Labels()
			space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.Namespace}}
			if test.ownsSpace {
				space.Labels = owned
			}
			_, err := b.admin.CoreV1().Namespaces().Create(ctx, space, metav1.CreateOptions{})
			require.NoError(t, err)
			for name, labels := range map[string]map[string]string{
				"files": owned,
				"other": {desired.LabelAgent: owned[desired.LabelAgent]},
			} {
				_, err = b.admin.CoreV1().ConfigMaps(
					w.Namespace,
				).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{})
				require.NoError(t, err)
			}
			stubs := b.terminated(w, 4)
			for _, name := range []string{"files", "other", "missing"} {
				stubs.Objects = append(stubs.Objects, desired.Object{
					Reference: desired.Reference{ApiVersion: "v1", Kind: "ConfigMap", Namespace: w.Namespace, Name: name},
				})
			}
			leader := b.leader(t, admin(t))
			terminate(t, leader, stubs)
			_, err = b.admin.CoreV1().ConfigMaps(w.Namespace).Get(ctx, "files", metav1.GetOptions{})
			require.True(t, apierrors.IsNotFound(err))
			_, err = b.admin.CoreV1().Namespaces().Get(ctx, w.Namespace, metav1.GetOptions{})
			require.Equal(t, test.ownsSpace, apierrors.IsNotFound(err))
			if !test.ownsSpace {
				_, err = b.admin.CoreV1().ConfigMaps(w.Namespace).Get(ctx, "other", metav1.GetOptions{})
				require.NoError(t, err, "it bears the agent's label only")
			}
			inventories, err := b.admin.CoreV1().ConfigMaps(
				kube.AgentNamespace(b.agent),
			).List(ctx, metav1.ListOptions{LabelSelector: desired.LabelAgent})
			require.NoError(t, err)
			require.Empty(t, inventories.Items)
			terminate(t, leader, stubs) // a repeated Terminate succeeds
		})
	}
}

func TestLowerRevisionReportsTheHigherOne(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	w := b.with(b.workspace(), 7, configMap("files", "1"))
	_, err := b.leader(t, admin(t)).Apply(testContext(t), w, b.secrets)
	require.NoError(t, err)
	_, err = b.leader(t, admin(t)).Apply(testContext(t), b.with(w, 3, configMap("files", "1")), b.secrets)
	var f *failure.Failure
	require.ErrorAs(t, err, &f)
	require.Equal(t, failure.Superseded, f.Reason)
	require.EqualValues(t, 7, f.ClusterRevision)
}
