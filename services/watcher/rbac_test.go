package watcher_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher"
	"lockstep.internal/tools/testkit/labtest"
)

func TestManifestGrantsTheNeededPermissions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.workspace(t)
	manifest, err := os.ReadFile(filepath.Join("..", "..", "deploy", "rbac", "watcher.yaml"))
	require.NoError(t, err)
	apply(t, w.client, strings.ReplaceAll(string(manifest), "lockstep-agent-1", watcher.Namespace(f.agent)))

	cfg := f.config(t)
	cfg.Kubernetes.Kubeconfig = asServiceAccount(t, w.client, watcher.Namespace(f.agent), "lockstep-watcher")
	p := start(t, cfg)
	recorder := f.record(t)
	recorder.resynced(t)
	w.create(t, "ide", 1)
	recorder.until(t, "a running pod", func(h recorded) bool { return h.Phase == "Running" })
	for _, part := range []string{"leader", "kubernetes", "nats", "backlog"} {
		p.awaitReason(t, part, true, "")
	}
}

func TestWorkloadsManifestGrantsTheNeededPermissions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w, s := f.workspace(t), f.workloadNamespace(t, "")
	permit := func(name string) {
		manifest, err := os.ReadFile(filepath.Join("..", "..", "deploy", "rbac", name))
		require.NoError(t, err)
		apply(t, w.client, strings.ReplaceAll(string(manifest), "lockstep-agent-1", watcher.Namespace(f.agent)))
	}
	permit("watcher.yaml")
	cfg := f.trackingConfig(t, "")
	cfg.Kubernetes.Kubeconfig = asServiceAccount(t, w.client, watcher.Namespace(f.agent), "lockstep-watcher")
	p := start(t, cfg)
	recorder := f.record(t)
	recorder.resyncedOf(t, "")
	p.awaitReason(t, "leader", false, "statefulsets")
	w.create(t, "ide", 0)
	recorder.until(t, "the workspace", func(h recorded) bool {
		return h.Object.Name == "ide"
	})

	permit(filepath.Join("workloads", "watcher.yaml"))
	recorder.resyncedOf(t, workloads)
	s.deployment(t, "web", 0, nil)
	recorder.until(t, "a workload", func(h recorded) bool {
		return h.Type == events.TypeObservedWorkload && h.Object.Namespace == s.namespace
	})
	p.awaitReason(t, "leader", true, "")
}

// apply creates the objects of a manifest.
func apply(t *testing.T, client kubernetes.Interface, manifest string) {
	t.Helper()
	for document := range strings.SplitSeq(manifest, "\n---\n") {
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(document), nil, nil)
		require.NoError(t, err)
		options := metav1.CreateOptions{}
		switch o := object.(type) {
		case *corev1.Namespace:
			_, err = client.CoreV1().Namespaces().Create(t.Context(), o, options)
		case *corev1.ServiceAccount:
			_, err = client.CoreV1().ServiceAccounts(o.Namespace).Create(t.Context(), o, options)
		case *rbacv1.ClusterRole:
			_, err = client.RbacV1().ClusterRoles().Create(t.Context(), o, options)
		case *rbacv1.ClusterRoleBinding:
			_, err = client.RbacV1().ClusterRoleBindings().Create(t.Context(), o, options)
		case *rbacv1.Role:
			_, err = client.RbacV1().Roles(o.Namespace).Create(t.Context(), o, options)
		case *rbacv1.RoleBinding:
			_, err = client.RbacV1().RoleBindings(o.Namespace).Create(t.Context(), o, options)
		default:
			require.Fail(t, "the manifest has an object that is not expected", "%T", object)
		}
		if !apierrors.IsAlreadyExists(err) {
			require.NoError(t, err)
		}
	}
}

// asServiceAccount writes a kubeconfig with a token of the ServiceAccount.
func asServiceAccount(t *testing.T, client kubernetes.Interface, namespace, name string) string {
	t.Helper()
	token, err := client.CoreV1().ServiceAccounts(
		namespace,
	).CreateToken(
		t.Context(),
		name,
		&authenticationv1.TokenRequest{},
		metav1.CreateOptions{},
	)
	require.NoError(t, err)
	cfg, err := clientcmd.LoadFromFile(labtest.Kubeconfig(t))
	require.NoError(t, err)
	for user := range cfg.AuthInfos {
		cfg.AuthInfos[user] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(*cfg, path))
	return path
}
