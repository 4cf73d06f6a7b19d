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
	// StateLabel is the label of a Node with the state of its kubelet. kwok simulates nodes with StateRunning.
	StateLabel = "kubelab.lockstep.dev/kubelet"
	// StateRunning means that the kubelet runs.
	StateRunning = "running"
	// StateStopped means that the kubelet is stopped.
	StateStopped = "stopped"
)

// leaseSeconds is the duration of node leases; they are renewed every quarter of it.
const leaseSeconds = 8

// Simulator simulates the kubelets of all nodes of a lab.
type Simulator struct {
	// Config of the client.
	Config *rest.Config
	// Holder is the holder of the node leases. It is the same for every run of a lab, so that a restarted lab does not
	// wait for its own leases to expire.
	Holder string
	// Port of the kubelets on 127.0.0.1.
	Port int32
	// Processes is set if package process runs the pods with the annotation AgentAnnotation.
	Processes bool
	// Log receives what kwok logs.
	Log io.Writer
}

// Run simulates until ctx ends.
func (s Simulator) Run(ctx context.Context) error {
	ctx = log.NewContext(ctx, log.NewLogger(s.Log, log.LevelWarn))
	if err := CheckStages(ctx); err != nil {
		return err
	}
	config := rest.CopyConfig(s.Config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return retrying{next: next, wait: time.After} })
	typed, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("create a client: %w", err)
	}
	untyped, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("create a dynamic client: %w", err)
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
		LocalStages:                  Stages(s.Port, s.Processes),
		PodPlayStageParallelism:      8,
		NodePlayStageParallelism:     2,
		PodsOnNodeSyncParallelism:    2,
		NodeLeaseDurationSeconds:     leaseSeconds,
		NodeLeaseParallelism:         2,
		ID:                           s.Holder,
		FuncMap:                      functions(s.Port, time.Now),
	})
	if err != nil {
		return fmt.Errorf("create the kubelets: %w", err)
	}
	if err := controller.Start(ctx); err != nil {
		return fmt.Errorf("start the kubelets: %w", err)
	}
	<-ctx.Done()
	return nil
}
