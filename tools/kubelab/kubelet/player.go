package kubelet

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/utils/clock"
	"sigs.k8s.io/kwok/pkg/kwok/controllers"
	"sigs.k8s.io/kwok/pkg/log"
)

const (
	// StateLabel says on a Node whether its kubelet runs; kwok plays the nodes
	// that have it at StateRunning.
	StateLabel = "kubelab.lockstep.dev/kubelet"
	// StateRunning is the state of a played node.
	StateRunning = "running"
	// StateStopped is the state of a node that has fallen silent.
	StateStopped = "stopped"
)

// leaseSeconds is the duration of node leases; they are renewed every quarter of it.
const leaseSeconds = 8

// Player plays the kubelets of all nodes of a lab.
type Player struct {
	// Config reaches the API server.
	Config *rest.Config
	// Holder is the holder of the node leases: the same for every run of a lab,
	// so that a restarted one need not wait for its own leases to expire.
	Holder string
	// Port is where the API server reaches the kubelets on 127.0.0.1.
	Port int32
	// Log receives what kwok logs.
	Log io.Writer
}

// Run plays until ctx ends.
func (p Player) Run(ctx context.Context) error {
	ctx = log.NewContext(ctx, log.NewLogger(p.Log, log.LevelWarn))
	if err := CheckStages(ctx); err != nil {
		return err
	}
	config := rest.CopyConfig(p.Config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return retrying{next: next, wait: time.After} })
	typed, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	untyped, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a dynamic client: %w", err)
	}
	controller, err := controllers.NewController(controllers.Config{
		Clock:                        clock.RealClock{},
		TypedClient:                  typed,
		DynamicClient:                untyped,
		RESTClient:                   typed.CoreV1().RESTClient(),
		RESTMapper:                   restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(typed.Discovery())),
		ManageNodesWithLabelSelector: StateLabel + "=" + StateRunning,
		CIDR:                         "10.128.0.0/9",
		NodeIP:                       "127.0.0.1",
		LocalStages:                  Stages(p.Port),
		PodPlayStageParallelism:      8,
		NodePlayStageParallelism:     2,
		PodsOnNodeSyncParallelism:    2,
		NodeLeaseDurationSeconds:     leaseSeconds,
		NodeLeaseParallelism:         2,
		ID:                           p.Holder,
		FuncMap:                      functions(p.Port, time.Now),
	})
	if err != nil {
		return fmt.Errorf("make the kubelets: %w", err)
	}
	if err := controller.Start(ctx); err != nil {
		return fmt.Errorf("start the kubelets: %w", err)
	}
	<-ctx.Done()
	return nil
}
