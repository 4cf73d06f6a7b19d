package controlplane

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"sigs.k8s.io/yaml"

	"lockstep.internal/tools/kubelab/pki"
)

const faultPlugin = "KubelabFaults"

// Scheduler configures kube-scheduler.
type Scheduler struct {
	// Kubeconfig is the path of the kubeconfig of the scheduler.
	Kubeconfig string
	// Dir is the folder of the scheduler's generated configuration file.
	Dir string
	// Unschedulable reports whether the pod must not be scheduled; it must be pure.
	Unschedulable func(*v1.Pod) bool
}

// StartScheduler launches kube-scheduler; the API server must be ready.
func StartScheduler(ctx context.Context, s Scheduler) (*Part, error) {
	path := filepath.Join(s.Dir, "scheduler.yaml")
	content, err := yaml.Marshal(map[string]any{
		"apiVersion":               "kubescheduler.config.k8s.io/v1",
		"kind":                     "KubeSchedulerConfiguration",
		"clientConnection":         map[string]any{"kubeconfig": s.Kubeconfig, "qps": 200, "burst": 400},
		"leaderElection":           map[string]any{"leaderElect": false},
		"enableProfiling":          false,
		"podInitialBackoffSeconds": 1,
		"podMaxBackoffSeconds":     2,
		"profiles": []any{map[string]any{
			"schedulerName": v1.DefaultSchedulerName,
			"plugins":       map[string]any{"multiPoint": map[string]any{"enabled": []any{map[string]any{"name": faultPlugin}}}},
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("encode the scheduler's configuration: %w", err)
	}
	if err := pki.WriteFile(path, content); err != nil {
		return nil, fmt.Errorf("write the scheduler's configuration: %w", err)
	}
	opts := options.NewOptions()
	fs := pflag.NewFlagSet("kube-scheduler", pflag.ContinueOnError)
	for _, set := range opts.Flags.FlagSets {
		fs.AddFlagSet(set)
	}
	if err := fs.Parse([]string{"--config=" + path, "--secure-port=0"}); err != nil {
		return nil, fmt.Errorf("parse the scheduler's flags: %w", err)
	}
	if err := opts.ComponentGlobalsRegistry.Set(); err != nil {
		return nil, fmt.Errorf("set the scheduler's feature gates: %w", err)
	}
	plugin := app.WithPlugin(
		faultPlugin,
		func(context.Context, runtime.Object, framework.Handle) (framework.Plugin, error) {
			return faultFilter{unschedulable: s.Unschedulable}, nil
		},
	)
	config, scheduler, err := app.Setup(ctx, opts, plugin)
	if err != nil {
		return nil, fmt.Errorf("set up the scheduler: %w", err)
	}
	return Go(ctx, "kube-scheduler", func(ctx context.Context) error {
		return app.Run(ctx, config, scheduler)
	}), nil
}

// faultFilter rejects all nodes for pods with the fault unschedulable.
type faultFilter struct{ unschedulable func(*v1.Pod) bool }

var _ framework.FilterPlugin = faultFilter{}

func (faultFilter) Name() string { return faultPlugin }

func (f faultFilter) Filter(
	_ context.Context, _ framework.CycleState, pod *v1.Pod, _ framework.NodeInfo,
) *framework.Status {
	if f.unschedulable(pod) {
		return framework.NewStatus(framework.UnschedulableAndUnresolvable, "Insufficient memory")
	}
	return nil
}
