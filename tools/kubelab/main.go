// Command kubelab runs a real Kubernetes control plane in one process.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"lockstep.internal/tools/kubelab/kubelet"
	"lockstep.internal/tools/kubelab/lab"
	"lockstep.internal/tools/kubelab/pki"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	// Ignore SIGPIPE: if the parent dies, kubelab must still clean up.
	signal.Ignore(syscall.SIGPIPE)
	// A second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	if err := newCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "kubelab:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "kubelab",
		Short: "A real Kubernetes control plane in one process, with simulated kubelets",
		Long: `kubelab runs the real etcd, kube-apiserver, kube-controller-manager and
kube-scheduler in one process, and simulates the kubelets with kwok: pods are
scheduled, started, restarted and deleted, but run nothing. It needs no
containers and no root. A lab never changes a kubeconfig that it did not write.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newUpCommand(), newNodeCommand(), newKubectlCommand())
	return root
}

func newUpCommand() *cobra.Command {
	config := lab.Config{Progress: os.Stderr}
	var readyFile string
	var exitWithParent bool
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a lab and keep it until SIGINT or SIGTERM",
		Long: `Start a lab, print its kubeconfig, and keep it until SIGINT or SIGTERM.

Progress goes to standard error. Without --data everything is temporary and
removed at the end, the kubeconfig included. Several labs run side by side.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			if exitWithParent {
				go func() {
					// The parent has the other end: EOF means that it has exited.
					_, _ = io.Copy(io.Discard, os.Stdin)
					cancel()
				}()
			}
			return lab.Run(ctx, config, func(info lab.Info) error { return announce(info, readyFile) })
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&config.Name, "name", "kubelab", "name of the cluster in the kubeconfig")
	flags.StringVar(&config.Data, "data", "", "folder of the lab's data (default: temporary)")
	flags.IntVar(&config.Nodes, "nodes", 2, "number of nodes")
	flags.StringVar(&config.Kubeconfig, "kubeconfig", "", "kubeconfig to write (default: in the data folder)")
	flags.DurationVar(&config.NodeGrace, "node-grace", 0,
		"node monitor grace period (default 20s, at least 8s)")
	flags.DurationVar(&config.StartTimeout, "start-timeout", 0, "fail if the lab is not ready within it (default 3m)")
	flags.StringVar(&config.WorkspaceAgent, "workspace-agent", "",
		`run this program as the workspace agent of pods with the annotation lockstep.dev/workspace-agent,
on this machine and as this user (default: no program is run)`)
	flags.StringVar(&readyFile, "ready-file", "",
		`file that receives one line of JSON when the lab is ready ("-": standard output)`)
	flags.BoolVar(&exitWithParent, "exit-with-parent", false, "stop when standard input ends")
	return cmd
}

// announce writes info atomically as one line of JSON.
func announce(info lab.Info, path string) error {
	if path == "" {
		return nil
	}
	line, err := json.Marshal(info)
	if err != nil {
		return fmt.Errorf("encode the ready line: %w", err)
	}
	line = append(line, '\n')
	if path == "-" {
		if _, err := os.Stdout.Write(line); err != nil {
			return fmt.Errorf("print the ready line: %w", err)
		}
		return nil
	}
	return pki.WriteFile(path, line)
}

var errNoKubeconfig = errors.New("--kubeconfig is required")

func newNodeCommand() *cobra.Command {
	var kubeconfig string
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Simulate a node failure",
	}
	cmd.PersistentFlags().StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig of the lab (required)")
	for use, change := range map[string]struct{ short, state string }{
		"stop NODE":  {"Stop the kubelet of a node", kubelet.StateStopped},
		"start NODE": {"Start the kubelet of a node", kubelet.StateRunning},
	} {
		cmd.AddCommand(&cobra.Command{
			Use:   use,
			Short: change.short,
			Args:  cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				client, err := newClient(kubeconfig)
				if err != nil {
					return err
				}
				return kubelet.SetNodeState(cmd.Context(), client, args[0], change.state)
			},
		})
	}
	return cmd
}

func newClient(kubeconfig string) (kubernetes.Interface, error) {
	if kubeconfig == "" {
		return nil, errNoKubeconfig
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", kubeconfig, err)
	}
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create a client: %w", err)
	}
	return client, nil
}
