package controlplane

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"

	"lockstep.internal/tools/kubelab/pki"
)

// Controllers configures kube-controller-manager.
type Controllers struct {
	Bundle pki.Bundle
	// Kubeconfig is the path of the kubeconfig of the controllers.
	Kubeconfig string
	// NodeGrace is the node monitor grace period.
	NodeGrace time.Duration
}

// controllerNames lists the controllers that run. What is missing needs a cloud,
// a container runtime or kubelets that ask for certificates.
func controllerNames() []string {
	return []string{
		names.DeploymentController,
		names.ReplicaSetController,
		names.StatefulSetController,
		names.DaemonSetController,
		names.JobController,
		names.CronJobController,
		names.NamespaceController,
		names.GarbageCollectorController,
		names.PodGarbageCollectorController,
		names.HorizontalPodAutoscalerController,
		names.DisruptionController,
		names.ServiceAccountController,
		names.ServiceAccountTokenController,
		names.RootCACertificatePublisherController,
		names.ClusterRoleAggregationController,
		names.ResourceQuotaController,
		names.PersistentVolumeBinderController,
		names.PersistentVolumeClaimProtectionController,
		names.PersistentVolumeProtectionController,
		names.EndpointSliceController,
		names.NodeLifecycleController,
		names.TaintEvictionController,
	}
}

// StartControllers launches kube-controller-manager; the API server must be ready.
func StartControllers(ctx context.Context, c Controllers) (*Part, error) {
	private, _ := c.Bundle.ServiceAccountKey()
	opts, err := options.NewKubeControllerManagerOptions()
	if err != nil {
		return nil, fmt.Errorf("make the controller manager's options: %w", err)
	}
	known, disabled, aliases := app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases()
	sets := opts.Flags(known, disabled, aliases)
	fs := pflag.NewFlagSet("kube-controller-manager", pflag.ContinueOnError)
	for _, set := range sets.FlagSets {
		fs.AddFlagSet(set)
	}
	err = fs.Parse([]string{
		"--kubeconfig=" + c.Kubeconfig,
		"--controllers=" + strings.Join(controllerNames(), ","),
		"--service-account-private-key-file=" + private,
		"--root-ca-file=" + c.Bundle.CA(),
		"--leader-elect=false",
		"--secure-port=0",
		"--profiling=false",
		"--kube-api-qps=200",
		"--kube-api-burst=400",
		"--node-monitor-period=1s",
		"--node-monitor-grace-period=" + c.NodeGrace.String(),
		"--node-startup-grace-period=" + c.NodeGrace.String(),
		"--concurrent-gc-syncs=5",
		"--pvclaimbinder-sync-period=5s",
		"--horizontal-pod-autoscaler-sync-period=2s",
	})
	if err != nil {
		return nil, fmt.Errorf("parse the controller manager's flags: %w", err)
	}
	opts.ParsedFlags = &sets
	if err := opts.ComponentGlobalsRegistry.Set(); err != nil {
		return nil, fmt.Errorf("set the controller manager's feature gates: %w", err)
	}
	config, err := opts.Config(ctx, known, disabled, aliases)
	if err != nil {
		return nil, fmt.Errorf("the controller manager's options: %w", err)
	}
	return Go(ctx, "kube-controller-manager", func(ctx context.Context) error {
		return app.Run(ctx, config.Complete())
	}), nil
}
