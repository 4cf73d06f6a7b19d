package deployment_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"lockstep.internal/deploy"
	"lockstep.internal/tools/testkit/labtest"
)

const (
	timeout      = 4 * time.Minute
	pollInterval = 50 * time.Millisecond
	// clusterSecret is a Secret of the cluster.
	clusterSecret = "cluster-secret"
)

// installedAgent is an agent in a cluster, made by what `lockstep agent manifest` prints.
type installedAgent struct {
	t         *testing.T
	admin     *rest.Config
	kube      *kubernetes.Clientset
	namespace string
}

func installAgent(t *testing.T, id int64) *installedAgent {
	t.Helper()
	admin, err := clientcmd.BuildConfigFromFlags("", labtest.Kubeconfig(t))
	require.NoError(t, err)
	admin.QPS = -1
	a := &installedAgent{t: t, admin: admin, namespace: "lockstep-agent-" + strconv.FormatInt(id, 10)}
	a.kube, err = kubernetes.NewForConfig(admin)
	require.NoError(t, err)
	objects, err := dynamic.NewForConfig(admin)
	require.NoError(t, err)
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(a.kube.Discovery()))

	text, err := deploy.Agent{
		ID: id, Components: deploy.Components(), ImageRepository: "registry.example/lockstep", ImageTag: "v1",
		NATSPorts: []string{"4222"}, RelayPorts: []string{"443"}, RelayURLs: []string{"wss://relay.example"},
		Workloads: true, Credentials: []byte(`{"token":"secret"}`),
		NamespacePrefix: "ws-",
	}.Render()
	require.NoError(t, err)
	for _, raw := range split(t, []byte(text)) {
		var object unstructured.Unstructured
		require.NoError(t, yaml.Unmarshal(raw, &object.Object))
		kind := object.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		require.NoError(t, err)
		_, err = objects.Resource(mapping.Resource).Namespace(object.GetNamespace()).Create(
			t.Context(), &object, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
		require.NoError(t, err, "%s", raw)
	}
	_, err = a.kube.CoreV1().Secrets(metav1.NamespaceSystem).Create(
		t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: clusterSecret}}, metav1.CreateOptions{})
	require.NoError(t, err)
	return a
}

// as returns the configuration of a client with the token of a component's ServiceAccount.
func (a *installedAgent) as(component string) *rest.Config {
	a.t.Helper()
	token, err := a.kube.CoreV1().ServiceAccounts(a.namespace).CreateToken(
		a.t.Context(), "lockstep-"+component, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(a.t, err)
	cfg := rest.AnonymousClientConfig(a.admin)
	cfg.BearerToken = token.Status.Token
	return cfg
}

func newClient(t *testing.T, cfg *rest.Config) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(cfg)
	require.NoError(t, err)
	return client
}

func impersonating(cfg *rest.Config, user string, groups ...string) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
	return cfg
}

// TestClusterRefusesWhatAgentsDoNotNeed makes requests with the tokens of an agent's programs. The tests of each
// program show that its permissions suffice.
func TestClusterRefusesWhatAgentsDoNotNeed(t *testing.T) {
	t.Parallel()
	a := installAgent(t, 4711)
	for component, permitted := range map[string]func(context.Context, *rest.Config) bool{
		deploy.Watcher: func(ctx context.Context, cfg *rest.Config) bool {
			_, err := newClient(t, cfg).AppsV1().StatefulSets("").List(ctx, metav1.ListOptions{})
			return err == nil
		},
		deploy.Dispatcher: func(ctx context.Context, cfg *rest.Config) bool {
			_, err := newClient(t, cfg).CoreV1().ConfigMaps("default").Create(ctx, configMap(), metav1.CreateOptions{})
			return refusedByPolicy(err) // the API server authorizes a request before it applies policies
		},
		deploy.RelayAgent: func(ctx context.Context, cfg *rest.Config) bool {
			cfg = impersonating(cfg, "lockstep:user:7", "lockstep:role:owner")
			who, err := newClient(t, cfg).AuthenticationV1().SelfSubjectReviews().Create(
				ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
			return err == nil && who.Status.UserInfo.Username == "lockstep:user:7"
		},
	} {
		t.Run(component, func(t *testing.T) {
			t.Parallel()
			cfg := a.as(component)
			require.Eventually(t, func() bool { return permitted(t.Context(), cfg) }, timeout, pollInterval,
				"the permissions take effect")
			a.requireRefused(t, cfg)
		})
	}
}

func configMap() *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "x-"}}
}

func refusedByPolicy(err error) bool {
	return err != nil && strings.Contains(err.Error(), "may only write to namespaces that begin with ws-")
}

// requireRefused makes the requests of somebody who has the token of a component's ServiceAccount and wants more.
func (a *installedAgent) requireRefused(t *testing.T, cfg *rest.Config) {
	t.Helper()
	client, ctx, create := newClient(t, cfg), t.Context(), metav1.CreateOptions{}
	const credentials = "agent-credentials"
	patch := func(namespace, name string, dryRun ...string) error {
		_, err := client.CoreV1().Secrets(namespace).Patch(
			ctx, name, types.MergePatchType, []byte("{}"), metav1.PatchOptions{DryRun: dryRun})
		return err
	}
	for name, caller := range map[string]*rest.Config{
		"itself":                   cfg,
		"an administrator":         impersonating(cfg, "lockstep:user:7", "system:masters"),
		"an unknown role":          impersonating(cfg, "lockstep:user:7", "lockstep:role:root"),
		"an owner without binding": impersonating(cfg, "lockstep:user:7", "lockstep:role:owner"),
		"an account of the cluster": impersonating(
			cfg, "system:serviceaccount:kube-system:generic-garbage-collector"),
	} {
		_, err := newClient(t, caller).CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
		require.True(t, apierrors.IsForbidden(err), "list Secrets as %s: %v", name, err)
	}
	pod := corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}
	everything := []rbacv1.PolicyRule{{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}}}
	for name, request := range map[string]func() error{
		"read the agent's Secret": func() error {
			_, err := client.CoreV1().Secrets(a.namespace).Get(ctx, credentials, metav1.GetOptions{})
			return err
		},
		"read the agent's Secret by a change": func() error { return patch(a.namespace, credentials) },
		"read the agent's Secret by a dry run": func() error {
			return patch(a.namespace, credentials, metav1.DryRunAll)
		},
		"read a Secret of the cluster by a change": func() error { return patch(metav1.NamespaceSystem, clusterSecret) },
		"change a ConfigMap of the cluster": func() error {
			_, err := client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Create(ctx, configMap(), create)
			return err
		},
		"delete a Service of the cluster": func() error {
			return client.CoreV1().Services("default").Delete(ctx, "kubernetes", metav1.DeleteOptions{})
		},
		"delete a namespace": func() error {
			return client.CoreV1().Namespaces().Delete(ctx, a.namespace, metav1.DeleteOptions{})
		},
		"run a pod beside the token": func() error {
			_, err := client.CoreV1().Pods(a.namespace).Create(
				ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Spec: pod}, create)
			return err
		},
		"change the Deployment of an agent": func() error {
			_, err := client.AppsV1().Deployments(a.namespace).Patch(
				ctx, "lockstep-watcher", types.MergePatchType, []byte(`{"spec":{"replicas":0}}`), metav1.PatchOptions{})
			return err
		},
		"run a command in a pod": func() error {
			return client.CoreV1().RESTClient().Post().Namespace(a.namespace).Resource("pods").Name("x").
				SubResource("exec").Param("command", "sh").Do(ctx).Error()
		},
		"make a token of another account": func() error {
			_, err := client.CoreV1().ServiceAccounts(metav1.NamespaceSystem).CreateToken(
				ctx, "generic-garbage-collector", &authenticationv1.TokenRequest{}, create)
			return err
		},
		"widen its own role": func() error {
			_, err := client.RbacV1().ClusterRoles().Update(ctx, &rbacv1.ClusterRole{
				ObjectMeta: metav1.ObjectMeta{Name: a.namespace + "-watcher"}, Rules: everything,
			}, metav1.UpdateOptions{})
			return err
		},
		"make a role": func() error {
			_, err := client.RbacV1().Roles(a.namespace).Create(
				ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Rules: everything}, create)
			return err
		},
		"bind a role": func() error {
			_, err := client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
				ObjectMeta: metav1.ObjectMeta{Name: "x"},
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			}, create)
			return err
		},
		"remove the limit of the dispatcher": func() error {
			return client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(
				ctx, a.namespace+"-dispatcher", metav1.DeleteOptions{})
		},
		"read a node": func() error {
			_, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
			return err
		},
		"read what a pod writes": func() error {
			return client.CoreV1().Pods(a.namespace).GetLogs("x", &corev1.PodLogOptions{}).Do(ctx).Error()
		},
	} {
		err := request()
		require.True(t, apierrors.IsForbidden(err) || refusedByPolicy(err), "%s: %v", name, err)
	}
}
