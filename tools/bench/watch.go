package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/seal"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/workspace"
	"lockstep.internal/services/watcher/kube/kubetest"
	"lockstep.internal/tools/testkit/natsd"
)

const (
	watchedWorkloads = 2000
	// listedAt is the version of every listing, above those of all objects.
	listedAt = 1_000_000_000
)

// watchFigures measures the memory of a watcher.
func watchFigures(ctx context.Context, size Size) (measured Measured, err error) {
	parts := &fixture{profile: size.Profile}
	defer parts.close(ctx, &err)
	dir, err := parts.folder()
	if err != nil {
		return nil, err
	}
	f, err := newFleet(benchAgent, "w")
	if err != nil {
		return nil, err
	}
	n := size.of(watchedWorkloads)
	ours, err := heapOf(n, func(n int) (float64, error) { return watcherHeap(ctx, dir, f, n) })
	if err != nil {
		return nil, err
	}
	bare, err := heapOf(n, func(n int) (float64, error) { return informerHeap(ctx, dir, f, n) })
	if err != nil {
		return nil, err
	}
	return Measured{"kb_per_workload": beside(ours, bare)}, nil
}

// heapOf is kilobytes for each of n workloads.
func heapOf(n int, measure func(n int) (float64, error)) (float64, error) {
	without, err := measure(0)
	if err != nil {
		return 0, err
	}
	with, err := measure(n)
	return math.Max(with-without, 0) / float64(n) / 1024, err
}

// cluster starts an API server with n workspaces of a fleet in a process of its own, so that making the
// objects costs the measured processes no memory. It returns a kubeconfig.
func (b *fixture) cluster(ctx context.Context, dir string, f *fleet, n int) (string, error) {
	cfg := clusterConfig{Kubeconfig: filepath.Join(dir, "kubeconfig"), Agent: f.agent, Prefix: f.prefix, Workspaces: n}
	argument, err := json.Marshal(cfg)
	if err != nil {
		return "", fmt.Errorf("configure the API server: %w", err)
	}
	_, err = b.start(ctx, dir, childCluster, string(argument))
	return cfg.Kubeconfig, err
}

// clusterConfig configures a child that is an API server.
type clusterConfig struct {
	Kubeconfig string `json:"kubeconfig"` // file to write
	Agent      int64  `json:"agent"`
	Prefix     string `json:"prefix"`
	Workspaces int    `json:"workspaces"`
}

func serveCluster(cfg clusterConfig, signals <-chan os.Signal, ready func(map[string]string)) error {
	f, err := newFleet(cfg.Agent, cfg.Prefix)
	if err != nil {
		return err
	}
	server := kubetest.New()
	defer server.Close()
	fill(server, f, cfg.Workspaces)
	if err := server.WriteKubeconfig(cfg.Kubeconfig); err != nil {
		return fmt.Errorf("start the API server: %w", err)
	}
	ready(nil)
	<-signals
	return nil
}

// fill makes the server list n workspaces of a fleet.
func fill(server *kubetest.Server, f *fleet, n int) {
	server.SetMany(kubetest.Deployments, listedAt, n, func(i int) runtime.Object { return f.Deployment(i, 3*i+1, true) })
	server.SetMany(kubetest.ReplicaSets, listedAt, n, func(i int) runtime.Object { return f.ReplicaSet(i, 3*i+2) })
	server.SetMany(kubetest.Pods, listedAt, n, func(i int) runtime.Object { return f.Pod(i, 3*i+3) })
}

// watcherHeap is the heap of a watcher of n workloads.
func watcherHeap(ctx context.Context, dir string, f *fleet, n int) (heap float64, err error) {
	parts := &fixture{}
	defer parts.close(ctx, &err)
	kubeconfig, err := parts.cluster(ctx, dir, f, n)
	if err != nil {
		return 0, err
	}
	server, err := natsd.Start(natsd.Options{})
	if err != nil {
		return 0, fmt.Errorf("start NATS: %w", err)
	}
	parts.onClose(func(context.Context) error { return server.Stop() })
	conn, err := parts.connect(server.ClientURL())
	if err != nil {
		return 0, err
	}
	js, err := parts.streams(ctx, conn)
	if err != nil {
		return 0, err
	}
	if err := topology.EnsureAgent(ctx, js, benchCell, f.agent); err != nil {
		return 0, fmt.Errorf("make the agent's consumers: %w", err)
	}
	credentials := filepath.Join(dir, "agent.json")
	if err := writeCredentials(credentials, f.agent, server.ClientURL()); err != nil {
		return 0, err
	}
	over, err := resyncEnded(ctx, js, f.agent)
	if err != nil {
		return 0, err
	}
	defer over.stop()
	w, err := parts.start(
		ctx,
		dir,
		childWatcher,
		"--credentials-file="+credentials,
		"--kubernetes-kubeconfig="+kubeconfig,
		"--ops-listen=127.0.0.1:0",
	)
	if err != nil {
		return 0, err
	}
	if err := over.wait(ctx); err != nil {
		return 0, err
	}
	heap, err = w.ask(ctx, askHeap)
	if err != nil {
		return 0, err
	}
	return heap, w.stop()
}

// writeCredentials makes up those of an agent, for a server that lets everybody in.
func writeCredentials(path string, agent int64, url string) error {
	own, err := seal.GenerateKey()
	if err != nil {
		return fmt.Errorf("make the agent's key: %w", err)
	}
	seed, err := own.Seed()
	if err != nil {
		return fmt.Errorf("make the agent's key: %w", err)
	}
	if err := natsauth.WriteAgentCredentials(path, natsauth.AgentCredentials{
		ServerURLs: []string{url}, Cell: benchCell, AgentID: agent, Token: natsauth.NewToken(natsauth.TokenAgent),
		CurveSeed: seed.Reveal(), SealerKey: own.Public(),
	}); err != nil {
		return fmt.Errorf("write the agent's credentials: %w", err)
	}
	return nil
}

// ending waits for the end of a full resync.
type ending struct {
	told     chan struct{}
	consumer jetstream.ConsumeContext
}

func resyncEnded(ctx context.Context, js jetstream.JetStream, agent int64) (*ending, error) {
	consumer, err := js.OrderedConsumer(
		ctx,
		topology.StreamObserved,
		jetstream.OrderedConsumerConfig{FilterSubjects: []string{benchCell.ObservedResync(agent)}},
	)
	if err != nil {
		return nil, fmt.Errorf("follow resyncs: %w", err)
	}
	e := &ending{told: make(chan struct{}, 1)}
	e.consumer, err = consumer.Consume(func(m jetstream.Msg) {
		if m.Headers().Get("ce-type") == events.TypeObservedResyncEnded {
			select {
			case e.told <- struct{}{}:
			default:
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("follow resyncs: %w", err)
	}
	return e, nil
}

func (e *ending) stop() {
	e.consumer.Stop()
	<-e.consumer.Closed()
}

func (e *ending) wait(ctx context.Context) error {
	select {
	case <-e.told:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for a full resync: %w", context.Cause(ctx))
	}
}

// informerHeap is the heap of typed informers of n workloads.
func informerHeap(ctx context.Context, dir string, f *fleet, n int) (heap float64, err error) {
	parts := &fixture{}
	defer parts.close(ctx, &err)
	kubeconfig, err := parts.cluster(ctx, dir, f, n)
	if err != nil {
		return 0, err
	}
	informer, err := parts.start(ctx, dir, childInformer, kubeconfig)
	if err != nil {
		return 0, err
	}
	if heap, err = informer.ask(ctx, askHeap); err != nil {
		return 0, err
	}
	return heap, informer.stop()
}

// watchBare is the child that holds everything as it comes, in the informers of client-go, until it is told to end.
func watchBare(kubeconfig string, end <-chan os.Signal, ready func()) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	cfg.ContentType, cfg.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	cfg.QPS = -1
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	factory := informers.NewSharedInformerFactoryWithOptions(
		client,
		time.Duration(0),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.LabelSelector = workspace.LabelAgent + "=" + strconv.FormatInt(benchAgent, 10)
		}),
	)
	synced := []cache.InformerSynced{
		factory.Apps().V1().Deployments().Informer().HasSynced,
		factory.Apps().V1().ReplicaSets().Informer().HasSynced,
		factory.Core().V1().Pods().Informer().HasSynced,
	}
	factory.StartWithContext(ctx)
	defer factory.Shutdown()
	defer cancel()
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return fmt.Errorf("wait for the objects: %w", context.Cause(ctx))
	}
	ready()
	<-end
	return nil
}
