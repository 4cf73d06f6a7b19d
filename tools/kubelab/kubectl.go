package main

import (
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
)

// newKubectlCommand is kubectl itself, of the control plane's version: its flags,
// its configuration, its exit codes.
func newKubectlCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "kubectl",
		Short: "kubectl of the control plane's version; uses the normal kubectl configuration",
		// kubectl parses the flags, including --help.
		DisableFlagParsing: true,
		Run:                func(_ *cobra.Command, args []string) { kubectl(args) },
	}
}

// kubectl runs kubectl with args. If it fails, it exits the process like kubectl.
func kubectl(args []string) {
	// Restore default signal handling for kubectl.
	signal.Reset()
	args = append([]string{"kubectl"}, args...)
	// First, because the construction of the command already logs.
	_, _ = logs.GlogSetter(cmd.GetLogVerbosity(args))
	streams := genericclioptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	command := cmd.NewDefaultKubectlCommandWithArgs(cmd.KubectlOptions{
		Arguments: args,
		ConfigFlags: genericclioptions.NewConfigFlags(true).
			WithDeprecatedPasswordFlag().
			WithDiscoveryBurst(300).
			WithDiscoveryQPS(50).
			WithWarningPrinter(streams),
		IOStreams: streams,
	})
	command.SetArgs(args[1:])
	if err := cli.RunNoErrOutput(command); err != nil {
		util.CheckErr(err)
	}
}
