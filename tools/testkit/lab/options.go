package lab

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// BinaryVariable names the environment variable that holds the path of a ready
// kubelab program, which is then neither built nor checked.
const BinaryVariable = "LOCKSTEP_KUBELAB"

// Options configures a lab. The zero value is a temporary lab.
type Options struct {
	// Name is the cluster's name in the kubeconfig. Defaults to "kubelab".
	Name string

	// Nodes is the number of nodes. Defaults to 2.
	Nodes int

	// Data is the folder that keeps the lab between runs, with its certificates and its address.
	// Defaults to a temporary folder that is removed with the lab.
	Data string

	// Kubeconfig is the file to write, removed at the end unless Data is kept. Defaults to a file
	// in the data folder.
	Kubeconfig string

	// NodeGrace is the node monitor grace period, at least 8 s. Defaults to 20 s.
	NodeGrace time.Duration

	// WorkspaceAgent is the program that runs on this machine in place of the workspace agents of pods. Defaults to
	// none: pods run nothing.
	WorkspaceAgent string

	// Binary is the kubelab program. Defaults to the value of LOCKSTEP_KUBELAB, else to one built
	// from the repository, else to one in Path.
	Binary string

	// Path lists folders with programs. Defaults to the folder of this program, then those of PATH.
	Path []string

	// Root is the repository. Defaults to the nearest folder with a go.work, from the working
	// directory upwards.
	Root string

	// Progress receives messages about the build, one per line. Defaults to io.Discard.
	Progress io.Writer

	// Output receives what the kubelab program prints. Defaults to Progress.
	Output io.Writer
}

func (o Options) withDefaults() Options {
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if o.Output == nil {
		o.Output = o.Progress
	}
	if o.Path == nil {
		if self, err := os.Executable(); err == nil {
			o.Path = append(o.Path, filepath.Dir(self))
		}
		o.Path = append(o.Path, filepath.SplitList(os.Getenv("PATH"))...)
	}
	return o
}

func (o Options) args() []string {
	args := []string{"up", "--exit-with-parent", "--ready-file=-"}
	if o.Name != "" {
		args = append(args, "--name="+o.Name)
	}
	if o.Nodes != 0 {
		args = append(args, "--nodes="+strconv.Itoa(o.Nodes))
	}
	if o.Data != "" {
		args = append(args, "--data="+o.Data)
	}
	if o.Kubeconfig != "" {
		args = append(args, "--kubeconfig="+o.Kubeconfig)
	}
	if o.WorkspaceAgent != "" {
		args = append(args, "--workspace-agent="+o.WorkspaceAgent)
	}
	if o.NodeGrace != 0 {
		args = append(args, "--node-grace="+o.NodeGrace.String())
	}
	return args
}
