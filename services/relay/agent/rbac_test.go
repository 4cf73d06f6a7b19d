package agent_test

import (
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/services/relay/agent"
	"lockstep.internal/tools/testkit/labtest"
)

// cluster is a relay and an agent with the RBAC manifest of deploy/rbac, in its own namespace.
type cluster struct {
	t         *testing.T
	relay     *relay
	admin     *kubernetes.Clientset
	namespace string
	account   string
	transport *http.Transport // over streams to the agent
	agent     *process
}

var clusters atomic.Int64

// newCluster starts an agent with a ServiceAccount token, or with the administrator's credentials.
func newCluster(t *testing.T, asAccount bool) *cluster {
	t.Helper()
	token := natsauth.NewToken(natsauth.TokenAgent)
	c := &cluster{t: t, relay: newRelay(t, token)}
	admin, err := clientcmd.BuildConfigFromFlags("", labtest.Kubeconfig(t))
	require.NoError(t, err)
	admin.QPS = -1
	c.admin, err = kubernetes.NewForConfig(admin)
	require.NoError(t, err)
	id := "agent-" + strconv.FormatInt(clusters.Add(1), 10)
	c.namespace = "lockstep-" + id
	_, err = c.admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: c.shop()},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.install("relay-agent.yaml", id)
	c.install(filepath.Join("relay-agent-roles", "project-roles.yaml"), id)

	cfg := newConfig(t, token, c.relay)
	cfg.Kubernetes = agent.Kubernetes{Enabled: true, Kubeconfig: labtest.Kubeconfig(t)}
	if asAccount {
		cfg.Kubernetes.Kubeconfig = c.accountKubeconfig()
	}
	c.agent = start(t, cfg)
	c.relay.session(1)
	c.transport = &http.Transport{DialContext: c.relay.dialKubernetes}
	t.Cleanup(c.transport.CloseIdleConnections)
	return c
}

// shop is a namespace in which developers may change objects.
func (c *cluster) shop() string { return c.namespace + "-shop" }

// install makes the objects of a manifest.
func (c *cluster) install(file, id string) {
	c.t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", "rbac", file))
	require.NoError(c.t, err)
	ctx, options := c.t.Context(), metav1.CreateOptions{}
	replace := strings.NewReplacer("agent-1", id, "namespace: shop", "namespace: "+c.shop())
	for document := range strings.SplitSeq(replace.Replace(string(text)), "\n---\n") {
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(document), nil, nil)
		require.NoError(c.t, err)
		switch o := object.(type) {
		case *corev1.Namespace:
			_, err = c.admin.CoreV1().Namespaces().Create(ctx, o, options)
		case *corev1.ServiceAccount:
			c.account = o.Name
			_, err = c.admin.CoreV1().ServiceAccounts(o.Namespace).Create(ctx, o, options)
		case *rbacv1.ClusterRole:
			_, err = c.admin.RbacV1().ClusterRoles().Create(ctx, o, options)
		case *rbacv1.ClusterRoleBinding:
			_, err = c.admin.RbacV1().ClusterRoleBindings().Create(ctx, o, options)
		case *rbacv1.RoleBinding:
			_, err = c.admin.RbacV1().RoleBindings(o.Namespace).Create(ctx, o, options)
		default:
			require.Fail(c.t, "unknown object", "%T", object)
		}
		if !apierrors.IsAlreadyExists(err) { // cluster-wide objects are shared by all agents
			require.NoError(c.t, err)
		}
	}
}

// accountKubeconfig writes a kubeconfig with a token of the agent's ServiceAccount.
func (c *cluster) accountKubeconfig() string {
	c.t.Helper()
	token, err := c.admin.CoreV1().ServiceAccounts(c.namespace).CreateToken(c.t.Context(), c.account,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(c.t, err)
	cfg, err := clientcmd.LoadFromFile(labtest.Kubeconfig(c.t))
	require.NoError(c.t, err)
	for user := range cfg.AuthInfos {
		cfg.AuthInfos[user] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	}
	path := filepath.Join(c.t.TempDir(), "kubeconfig")
	require.NoError(c.t, clientcmd.WriteToFile(*cfg, path))
	return path
}

// caller sends requests through the relay, with headers as the relay makes them.
type caller struct {
	cluster *cluster
	header  http.Header
}

func (c caller) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	maps.Copy(r.Header, c.header)
	return c.cluster.transport.RoundTrip(r)
}

// impersonate returns a client that sends these impersonation headers.
func (c *cluster) impersonate(header http.Header) *kubernetes.Clientset {
	c.t.Helper()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://kubernetes", QPS: -1, Transport: caller{c, header}})
	require.NoError(c.t, err)
	return client
}

func user(id string, groups ...string) http.Header {
	return http.Header{"Impersonate-User": {"lockstep:user:" + id}, "Impersonate-Group": groups}
}

func TestClusterRBACApplies(t *testing.T) {
	t.Parallel()
	c := newCluster(t, true)
	developer := c.impersonate(user("7", "lockstep:role:reader", "lockstep:role:developer"))
	reader := c.impersonate(user("8", "lockstep:role:reader"))
	service := c.impersonate(http.Header{
		"Impersonate-User": {"lockstep:service:gitlab"}, "Impersonate-Group": {"lockstep:services"},
	})
	options := metav1.ListOptions{}

	// The API server applies each new role and binding after a short delay.
	require.Eventually(t, func() bool {
		_, errRead := reader.CoreV1().ConfigMaps(c.shop()).List(t.Context(), options)
		_, errWrite := developer.CoreV1().ConfigMaps(c.shop()).Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "probe"},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return errRead == nil && errWrite == nil
	}, timeout, pollInterval)
	watching, err := reader.CoreV1().ConfigMaps(c.shop()).Watch(t.Context(), metav1.ListOptions{
		FieldSelector: "metadata.name=files",
	})
	require.NoError(t, err)
	defer watching.Stop()
	files := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "files"}, Data: map[string]string{"big": strings.Repeat("x", 500_000)},
	}
	created, err := developer.CoreV1().ConfigMaps(c.shop()).Create(t.Context(), files, metav1.CreateOptions{})
	require.NoError(t, err)
	event := <-watching.ResultChan()
	require.Equal(t, watch.Added, event.Type)
	require.Equal(t, created.UID, event.Object.(*corev1.ConfigMap).UID)
	got, err := reader.CoreV1().ConfigMaps(c.shop()).Get(t.Context(), "files", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, created.Data, got.Data)
	require.NoError(t, developer.CoreV1().ConfigMaps(c.shop()).Delete(t.Context(), "files", metav1.DeleteOptions{}))
	require.Equal(t, watch.Deleted, (<-watching.ResultChan()).Type)

	// The API server denies it and names the impersonated user.
	err = reader.CoreV1().ConfigMaps(c.shop()).Delete(t.Context(), "files", metav1.DeleteOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	require.ErrorContains(t, err, `User "lockstep:user:8" cannot delete resource "configmaps"`)
	_, err = service.CoreV1().ConfigMaps(c.shop()).List(t.Context(), options)
	require.ErrorContains(t, err, `User "lockstep:service:gitlab" cannot list resource "configmaps"`)
	// The agent's token is in its own namespace. No role reads Secrets or changes objects there.
	for _, caller := range []*kubernetes.Clientset{reader, developer} {
		_, err = caller.CoreV1().Secrets(c.namespace).List(t.Context(), options)
		require.True(t, apierrors.IsForbidden(err), "%v", err)
		_, err = caller.CoreV1().ConfigMaps(c.namespace).Create(t.Context(), files, metav1.CreateOptions{})
		require.True(t, apierrors.IsForbidden(err), "%v", err)
	}
	_, err = service.Discovery().ServerVersion()
	require.NoError(t, err)
	c.agent.waitFor("/readyz", http.StatusOK, "[ok] kubernetes")
}

// whoAmI returns the caller's identity as the API server sees it.
func whoAmI(t *testing.T, client *kubernetes.Clientset) authenticationv1.UserInfo {
	t.Helper()
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(),
		&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	require.NoError(t, err)
	return review.Status.UserInfo
}

// The agent runs with admin credentials, so only its own check protects the cluster.
func TestOnlyLockstepUsersAreImpersonated(t *testing.T) {
	t.Parallel()
	c := newCluster(t, false)
	admin, err := clientcmd.LoadFromFile(labtest.Kubeconfig(t))
	require.NoError(t, err)
	require.Len(t, admin.AuthInfos, 1)
	own := whoAmI(t, c.admin)
	require.Contains(t, own.Groups, "system:masters", "precondition of this test")

	who := whoAmI(t, c.impersonate(user("7", "lockstep:role:reader")))
	require.Equal(t, "lockstep:user:7", who.Username)
	require.ElementsMatch(t, []string{"lockstep:role:reader", "system:authenticated"}, who.Groups)

	with := func(header http.Header, key string, values ...string) http.Header {
		header = header.Clone()
		header[key] = values
		return header
	}
	// A Connection header must not remove impersonation headers.
	who = whoAmI(t, c.impersonate(with(user("7"), "Connection", "Impersonate-User, Impersonate-Group")))
	require.Equal(t, "lockstep:user:7", who.Username)
	who = whoAmI(t, c.impersonate(with(with(user("7"), "Authorization", "Bearer nonsense"), "X-Remote-User", "root")))
	require.Equal(t, "lockstep:user:7", who.Username)

	for name, header := range map[string]http.Header{
		"no user":           {},
		"an administrator":  {"Impersonate-User": {own.Username}},
		"a system group":    user("7", "system:masters"),
		"a service account": {"Impersonate-User": {"system:serviceaccount:kube-system:default"}},
		"extra fields":      with(user("7"), "Impersonate-Extra-Scopes", "all"),
		"a UID":             with(user("7"), "Impersonate-Uid", own.UID+"x"),
	} {
		_, err := c.impersonate(header).CoreV1().Secrets("kube-system").List(t.Context(), metav1.ListOptions{})
		require.True(t, apierrors.IsForbidden(err), "%s: %v", name, err)
		require.NotContains(t, err.Error(), "cannot list resource", "%s: the agent refuses it, not the API server", name)
	}
}

// Even if the agent's check is bypassed, its ServiceAccount has no other rights.
func TestServiceAccountHasNoOtherRights(t *testing.T) {
	t.Parallel()
	c := newCluster(t, true)
	account, err := clientcmd.BuildConfigFromFlags("", c.accountKubeconfig())
	require.NoError(t, err)
	as := func(user string, groups ...string) *kubernetes.Clientset {
		cfg := rest.CopyConfig(account)
		cfg.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
		client, err := kubernetes.NewForConfig(cfg)
		require.NoError(t, err)
		return client
	}
	require.Eventually(t, func() bool {
		_, err := as("lockstep:user:7", "lockstep:role:owner").Discovery().ServerVersion()
		return err == nil
	}, timeout, pollInterval)
	for name, client := range map[string]*kubernetes.Clientset{
		"itself":            as(""),
		"a group":           as("lockstep:user:7", "system:masters"),
		"an unknown role":   as("lockstep:user:7", "lockstep:role:unknown"),
		"a service account": as("system:serviceaccount:kube-system:generic-garbage-collector"),
	} {
		_, err := client.CoreV1().Secrets("kube-system").List(t.Context(), metav1.ListOptions{})
		require.True(t, apierrors.IsForbidden(err), "%s: %v", name, err)
	}
}
