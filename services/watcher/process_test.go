package watcher_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"lockstep.internal/libs/leader"
	"lockstep.internal/libs/service"
	"lockstep.internal/services/watcher"
	"lockstep.internal/services/watcher/object"
	"lockstep.internal/tools/testkit/labtest"
)

// process is a watcher that runs inside the test process.
type process struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error
	ops    string
}

func (f *fixture) config(t *testing.T) watcher.Config {
	t.Helper()
	return f.configWith(labtest.Kubeconfig(t))
}

func (f *fixture) configWith(kubeconfig string) watcher.Config {
	cfg := watcher.DefaultConfig()
	cfg.CredentialsFile = f.credentials
	cfg.Kubernetes.Kubeconfig = kubeconfig
	cfg.Ops.Listen = "127.0.0.1:0"
	// Long enough that no watcher loses the Lease on a busy machine. One that stops releases it.
	cfg.Lease = leader.Config{
		Duration: 30 * time.Second, RenewDeadline: 20 * time.Second, RetryPeriod: 200 * time.Millisecond,
	}
	// A slow machine exceeds no timeout.
	cfg.Publish.AckTimeout, cfg.ConfigTimeout = timeout, timeout
	cfg.Telemetry.LogFormat = "text"
	return cfg
}

// start starts a watcher and returns when its HTTP server listens.
func start(t *testing.T, cfg watcher.Config) *process {
	t.Helper()
	cfg.Log = t.Output()
	p := &process{done: make(chan struct{})}
	listening := make(chan string, 1)
	cfg.OnListen = func(addrs map[string]string) { listening <- addrs["ops"] }
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	p.cancel = sync.OnceFunc(cancel)
	go func() {
		defer close(p.done)
		p.err = watcher.Main(ctx, cfg)
	}()
	t.Cleanup(func() { p.stop(t) })
	select {
	case p.ops = <-listening:
	case <-p.done:
		require.NoError(t, p.err)
	}
	return p
}

func (p *process) stop(t *testing.T) {
	t.Helper()
	p.cancel()
	<-p.done
	require.NoError(t, p.err)
}

// ready returns the report of /readyz.
func (p *process) ready(t *testing.T) service.Report {
	t.Helper()
	var report service.Report
	require.NoError(t, json.Unmarshal(p.get(t, "/readyz"), &report))
	return report
}

func (p *process) metrics(t *testing.T) string {
	t.Helper()
	return string(p.get(t, "/metrics"))
}

func (p *process) get(t *testing.T, path string) []byte {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.ops+path, nil)
	require.NoError(t, err)
	request.Header.Set("Accept", "application/json")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return body
}

// awaitReason waits until the readiness of a part is ready and its reason contains the text. An empty text means no
// reason.
func (p *process) awaitReason(t *testing.T, part string, ready bool, reason string) {
	t.Helper()
	last := ""
	require.Eventually(t, func() bool {
		for _, check := range p.ready(t).Checks {
			if check.Name == part {
				last = fmt.Sprintf("%v %s", check.Ready, check.Reason)
				expected := contains(check.Reason, reason) && (reason == "") == (check.Reason == "")
				return check.Ready == ready && expected
			}
		}
		return false
	}, timeout, 50*time.Millisecond, "%s", lazy(func() string { return last }))
}

type lazy func() string

func (l lazy) String() string { return l() }

func kubernetesClient(t *testing.T) kubernetes.Interface {
	t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", labtest.Kubeconfig(t))
	require.NoError(t, err)
	cfg.QPS, cfg.Burst = 200, 400
	client, err := kubernetes.NewForConfig(cfg)
	require.NoError(t, err)
	return client
}

// workspace is a namespace of the agent in the cluster.
type workspace struct {
	client    kubernetes.Interface
	agent     int64
	namespace string
}

func (f *fixture) workspace(t *testing.T) *workspace {
	t.Helper()
	w := &workspace{client: kubernetesClient(t), agent: f.agent, namespace: fmt.Sprintf("ws-%d-test", f.agent)}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}
	_, err := w.client.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{})
	require.NoError(t, err)
	return w
}

func (w *workspace) labels(name string) map[string]string {
	return map[string]string{
		object.LabelAgent:         strconv.FormatInt(w.agent, 10),
		object.LabelWorkspace:     "id-of-" + name,
		object.LabelWorkspaceName: name,
	}
}

func (w *workspace) create(
	t *testing.T, name string, replicas int32, adjust ...func(*appsv1.Deployment),
) *appsv1.Deployment {
	t.Helper()
	labels := w.labels(name)
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{object.LabelWorkspaceName: name}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.example/ide:1"}}},
			},
		},
	}
	for _, f := range adjust {
		f(d)
	}
	created, err := w.client.AppsV1().Deployments(w.namespace).Create(t.Context(), d, metav1.CreateOptions{})
	require.NoError(t, err)
	return created
}

// annotate sets an annotation of a Deployment. Kubernetes changes nothing else.
func (w *workspace) annotate(t *testing.T, name, value string) {
	t.Helper()
	w.patch(t, name, fmt.Sprintf(`{"metadata":{"annotations":{"lockstep.dev/note":%q}}}`, value))
}

func (w *workspace) scale(t *testing.T, name string, replicas int) {
	t.Helper()
	w.patch(t, name, fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
}

func (w *workspace) patch(t *testing.T, name, patch string) *appsv1.Deployment {
	t.Helper()
	deployments := w.client.AppsV1().Deployments(w.namespace)
	d, err := deployments.Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	require.NoError(t, err)
	return d
}

// settled waits until the controllers have nothing left to do for the Deployments. It returns the versions of each and
// of its ReplicaSet.
func (w *workspace) settled(t *testing.T, names ...string) []string {
	t.Helper()
	return settled(t, w.client, w.namespace, names...)
}

func settled(t *testing.T, client kubernetes.Interface, namespace string, names ...string) []string {
	t.Helper()
	var versions []string
	require.Eventually(t, func() bool {
		versions = nil
		for _, name := range names {
			d, err := client.AppsV1().Deployments(namespace).Get(t.Context(), name, metav1.GetOptions{})
			require.NoError(t, err)
			sets, err := client.AppsV1().ReplicaSets(namespace).List(t.Context(), metav1.ListOptions{
				LabelSelector: metav1.FormatLabelSelector(d.Spec.Selector),
			})
			require.NoError(t, err)
			if !isSettled(d) || len(sets.Items) != 1 {
				return false
			}
			set := sets.Items[0]
			if set.Status.ObservedGeneration != set.Generation {
				return false
			}
			versions = append(versions, d.ResourceVersion, set.ResourceVersion)
		}
		return true
	}, timeout, 50*time.Millisecond)
	return versions
}

// isSettled reports whether the controller has set the last condition of a new Deployment.
func isSettled(d *appsv1.Deployment) bool {
	last := func(c appsv1.DeploymentCondition) bool { return c.Reason == "NewReplicaSetAvailable" }
	return d.Status.ObservedGeneration == d.Generation && slices.ContainsFunc(d.Status.Conditions, last)
}

func (w *workspace) remove(t *testing.T, name string) {
	t.Helper()
	background := metav1.DeletePropagationBackground
	options := metav1.DeleteOptions{PropagationPolicy: &background}
	require.NoError(t, w.client.AppsV1().Deployments(w.namespace).Delete(t.Context(), name, options))
}
