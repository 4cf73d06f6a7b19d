package kube_test

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/dispatcher/desired"
	"lockstep.internal/services/dispatcher/failure"
	"lockstep.internal/services/dispatcher/kube"
)

// fixture is one agent in the shared cluster, used by one test.
type fixture struct {
	agent   int64
	policy  desired.Policy
	admin   *kubernetes.Clientset
	secrets *secretSource
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	agent := 1000 + agents.Add(1)
	return &fixture{
		agent:   agent,
		admin:   kubernetesClient(t, admin(t)),
		secrets: &secretSource{digests: map[string]string{}},
		policy: desired.Policy{
			Agent: agent, NamespacePrefix: "ws-", PodSecurity: desired.PodSecurityRestricted, Kinds: desired.KindNames(),
		},
	}
}

func newClient(t *testing.T, cfg *rest.Config) *kube.Client {
	t.Helper()
	client, err := kube.NewClient(
		cfg, slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

// leader returns a Cluster with an empty cache.
func (b *fixture) leader(t *testing.T, cfg *rest.Config) *kube.Cluster {
	t.Helper()
	client := newClient(t, cfg)
	require.NoError(t, client.EnsureAgentNamespace(testContext(t), b.agent))
	cluster := kube.NewCluster(client, b.policy, kube.NewNamespaces(client, b.agent, func(string) {}))
	require.NoError(t, cluster.Load(testContext(t)))
	return cluster
}

// secretSource returns Secret values and counts the requests.
type secretSource struct {
	mu      sync.Mutex
	asked   int
	digests map[string]string
}

func (v *secretSource) Values(_ context.Context, _ string, secret events.SecretReference) (map[string][]byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.asked++
	v.digests[secret.Name] = secret.Digest
	return map[string][]byte{"TOKEN": []byte("value of " + secret.Digest)}, nil
}

func (v *secretSource) count() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.asked
}

// workspace returns a workspace with its own namespace and no objects.
func (b *fixture) workspace() desired.Workspace {
	id := uuid.NewString()
	return desired.Workspace{
		ID:        id,
		Name:      "w",
		Namespace: "ws-" + strconv.FormatInt(b.agent, 10) + "-" + id[:8],
		Revision:  1,
		Target:    events.DesiredTargetRunning,
	}
}

// with gives the workspace another revision and these objects.
func (b *fixture) with(w desired.Workspace, revision int64, objects ...desired.Object) desired.Workspace {
	w.Revision = revision
	w.Objects = nil
	for _, object := range objects {
		object.Namespace = w.Namespace
		labels := map[string]any{}
		for key, value := range (desired.Owner{Agent: b.agent, Workspace: w.ID}).Labels() {
			labels[key] = value
		}
		object.Manifest["apiVersion"], object.Manifest["kind"] = object.ApiVersion, object.Kind
		object.Manifest["metadata"] = map[string]any{"name": object.Name, "namespace": w.Namespace, "labels": labels}
		w.Objects = append(w.Objects, object)
	}
	return w
}

func (b *fixture) terminated(w desired.Workspace, revision int64) desired.Workspace {
	w.Revision, w.Target, w.Objects, w.Secrets = revision, events.DesiredTargetTerminated, nil, nil
	return w
}

func object(apiVersion, kind, name string, manifest map[string]any) desired.Object {
	return desired.Object{Reference: desired.Reference{ApiVersion: apiVersion, Kind: kind, Name: name}, Manifest: manifest}
}

func configMap(name, value string) desired.Object {
	return object("v1", "ConfigMap", name, map[string]any{"data": map[string]any{"key": value}})
}

func volume(name, size string) desired.Object {
	return object("v1", "PersistentVolumeClaim", name, map[string]any{"spec": map[string]any{
		"accessModes": []any{"ReadWriteOnce"}, "resources": map[string]any{"requests": map[string]any{"storage": size}},
	}})
}

func deployment(replicas int64) desired.Object {
	match := map[string]any{"app": "w"}
	return object("apps/v1", "Deployment", "w", map[string]any{"spec": map[string]any{
		"replicas": replicas, "selector": map[string]any{"matchLabels": match},
		"template": map[string]any{
			"metadata": map[string]any{"labels": match},
			"spec": map[string]any{
				"automountServiceAccountToken": false,
				"securityContext": map[string]any{
					"runAsNonRoot": true, "runAsUser": int64(1000),
					"seccompProfile": map[string]any{"type": "RuntimeDefault"},
				},
				"containers": []any{
					map[string]any{
						"name":  "main",
						"image": "registry.example/ide:1",
						"ports": []any{map[string]any{"containerPort": int64(8080)}},
						"securityContext": map[string]any{
							"allowPrivilegeEscalation": false, "capabilities": map[string]any{"drop": []any{"ALL"}},
						},
					},
				},
			},
		},
	}})
}

func service(name string) desired.Object {
	return object("v1", "Service", name, map[string]any{"spec": map[string]any{
		"selector": map[string]any{"app": name}, "ports": []any{map[string]any{"port": int64(8080)}},
	}})
}

// reason returns the reason of err, which must be a Failure.
func reason(t *testing.T, err error) failure.Reason {
	t.Helper()
	var f *failure.Failure
	require.ErrorAs(t, err, &f)
	require.NotEmpty(t, f.Message)
	t.Logf("%s: %s", f.Reason, f.Message)
	return f.Reason
}

// existing returns the names of the workspace's existing ConfigMaps, volumes and Deployments.
func (b *fixture) existing(t *testing.T, w desired.Workspace) []string {
	t.Helper()
	selector := metav1.ListOptions{LabelSelector: desired.LabelWorkspace + "=" + w.ID}
	configMaps, err := b.admin.CoreV1().ConfigMaps(w.Namespace).List(testContext(t), selector)
	require.NoError(t, err)
	volumes, err := b.admin.CoreV1().PersistentVolumeClaims(w.Namespace).List(testContext(t), selector)
	require.NoError(t, err)
	deployments, err := b.admin.AppsV1().Deployments(w.Namespace).List(testContext(t), selector)
	require.NoError(t, err)
	names := make([]string, 0, len(configMaps.Items)+len(volumes.Items)+len(deployments.Items))
	for _, item := range configMaps.Items {
		names = append(names, item.Name)
	}
	for _, item := range volumes.Items {
		names = append(names, item.Name)
	}
	for _, item := range deployments.Items {
		names = append(names, item.Name)
	}
	return names
}

// inventory is the text of the workspace's inventory, empty when there is none.
func (b *fixture) inventory(t *testing.T, w desired.Workspace) string {
	t.Helper()
	list, err := b.admin.CoreV1().ConfigMaps(
		kube.AgentNamespace(b.agent),
	).List(testContext(t), metav1.ListOptions{LabelSelector: desired.LabelWorkspace + "=" + w.ID})
	require.NoError(t, err)
	if len(list.Items) == 0 {
		return ""
	}
	require.Len(t, list.Items, 1)
	require.Equal(t, "workspace-"+w.ID, list.Items[0].Name)
	return strings.Join([]string{list.Items[0].Data["desired_revision"], list.Items[0].Data["objects"]}, " ")
}

// terminate calls Terminate until nothing remains.
func terminate(t *testing.T, cluster *kube.Cluster, w desired.Workspace) {
	t.Helper()
	require.Eventually(t, func() bool {
		remaining, err := cluster.Terminate(testContext(t), w)
		require.NoError(t, err)
		return len(remaining.Objects) == 0
	}, timeout, tick)
}

// setFinalizers sets the finalizers of the ConfigMap "files", so that a delete does not remove it.
func (b *fixture) setFinalizers(t *testing.T, w desired.Workspace, list string) {
	t.Helper()
	patch := []byte(`{"metadata":{"finalizers":` + list + `}}`)
	_, err := b.admin.CoreV1().ConfigMaps(
		w.Namespace,
	).Patch(testContext(t), "files", types.MergePatchType, patch, metav1.PatchOptions{})
	require.NoError(t, err)
}

// runNamespaces runs the informer until the test ends.
func runNamespaces(t *testing.T, namespaces *kube.Namespaces) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- namespaces.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
}
