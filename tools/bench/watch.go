package main

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/workspace"
	"lockstep.internal/services/watcher/kube/kubetest"
	"lockstep.internal/tools/stack"
)

const (
	watchedWorkloads = 2000
	// listedAt is the version of every list, above those of all objects in it.
	listedAt = 1_000_000_000
)

// watchHeap measures the heap of a watcher beside that of informers.
func watchHeap(ctx context.Context, f *fixture, size Size, measured Measured) {
	n := size.of(watchedWorkloads)
	measured["kb_per_workload"] = beside(
		heapPerItem(ctx, f, n, func(f *fixture, n int) *process { return startSyncedWatcher(ctx, f, n) }),
		heapPerItem(ctx, f, n, func(f *fixture, n int) *process {
			kubeconfig, _ := f.cluster(ctx, clusterConfig{Agent: benchAgent, Workspaces: n})
			return f.startStandIn(ctx, standInInformers, kubeconfig)
		}))
}

// startSyncedWatcher starts a watcher of n workspaces and waits for the end of its full resync.
func startSyncedWatcher(ctx context.Context, f *fixture, n int) *process {
	kubeconfig, _ := f.cluster(ctx, clusterConfig{Agent: benchAgent, Workspaces: n})
	_, js, url := f.jetStream(ctx)
	check(topology.EnsureAgent(ctx, js, benchCell, benchAgent))
	consumer := must(js.OrderedConsumer(ctx, topology.StreamObserved, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{benchCell.ObservedResync(benchAgent)},
	}))
	w := f.startWatcher(ctx, f.credentials(benchAgent, natsauth.NewToken(natsauth.TokenAgent), url), kubeconfig)
	for {
		m := must(consumer.Next(jetstream.FetchContext(ctx)))
		if m.Headers().Get("ce-type") == events.TypeObservedResyncEnded {
			return w
		}
	}
}

func (f *fixture) startWatcher(ctx context.Context, credentials, kubeconfig string) *process {
	return f.start(ctx, stack.Watcher, "--credentials-file="+credentials, "--kubernetes-kubeconfig="+kubeconfig,
		"--ops-listen="+loopback)
}

// clusterConfig configures a stand-in for an API server.
type clusterConfig struct {
	// Kubeconfig is the file to write.
	Kubeconfig string
	Agent      int64
	Workspaces int
}

// cluster starts an API server. It returns a kubeconfig and a URL: a request to it changes a Deployment.
func (f *fixture) cluster(ctx context.Context, cfg clusterConfig) (kubeconfig, changes string) {
	cfg.Kubeconfig = f.file("kubeconfig")
	return cfg.Kubeconfig, "http://" + f.startStandIn(ctx, standInCluster, cfg).addresses["changes"]
}

func runCluster(ctx context.Context, cfg clusterConfig, ready readyFunc) error {
	o := newObjects(cfg.Agent, workspacePrefix)
	cluster := kubetest.New()
	defer cluster.Close()
	var mu sync.Mutex
	changed := map[int]int{} // version of a Deployment by its workspace
	deployment := func(i int) runtime.Object {
		mu.Lock()
		defer mu.Unlock()
		return o.Deployment(i, max(3*i+1, changed[i]), true)
	}
	cluster.SetMany(kubetest.Deployments, listedAt, cfg.Workspaces, deployment)
	cluster.SetMany(kubetest.ReplicaSets, listedAt, cfg.Workspaces,
		func(i int) runtime.Object { return o.ReplicaSet(i, 3*i+2) })
	cluster.SetMany(kubetest.Pods, listedAt, cfg.Workspaces, func(i int) runtime.Object { return o.Pod(i, 3*i+3) })
	if err := cluster.WriteKubeconfig(cfg.Kubeconfig); err != nil {
		return fmt.Errorf("start the API server: %w", err)
	}
	change := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		version, err := strconv.Atoi(r.URL.Query().Get("version"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		i := version % cfg.Workspaces
		mu.Lock()
		changed[i] = version
		mu.Unlock()
		cluster.SetMany(kubetest.Deployments, version, cfg.Workspaces, deployment)
		at := time.Now()
		cluster.Send(kubetest.Deployments, "MODIFIED", o.Deployment(i, version, true))
		_, _ = fmt.Fprint(w, at.UnixNano())
	})
	return serveAll(ctx, map[string]server{"changes": {certified{}, newHTTPServer(change)}}, ready)
}

// runInformers keeps all objects in the informers of client-go.
func runInformers(ctx context.Context, kubeconfig string, ready readyFunc) error {
	client, err := newTypedClient(kubeconfig)
	if err != nil {
		return err
	}
	selectAgent := func(o *metav1.ListOptions) {
		o.LabelSelector = workspace.LabelAgent + "=" + strconv.FormatInt(benchAgent, 10)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(selectAgent))
	synced := []cache.InformerSynced{
		factory.Apps().V1().Deployments().Informer().HasSynced,
		factory.Apps().V1().ReplicaSets().Informer().HasSynced,
		factory.Core().V1().Pods().Informer().HasSynced,
	}
	factory.StartWithContext(ctx)
	defer factory.Shutdown()
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return fmt.Errorf("wait for the objects: %w", context.Cause(ctx))
	}
	return serveAll(ctx, map[string]server{stack.ListenerOps: {certified{}, newHTTPServer(promhttp.Handler())}}, ready)
}

// newTypedClient returns a client of an API server, with protobuf and without a limit of requests.
func newTypedClient(kubeconfig string) (kubernetes.Interface, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	cfg.QPS = -1
	return kubernetes.NewForConfig(cfg) //nolint:wrapcheck // of the configuration
}
