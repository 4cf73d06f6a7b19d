package stack

import (
	"io"

	"lockstep.internal/services/watcher"
)

// Options of a stack. The zero value is a temporary one on free ports.
type Options struct {
	// Dir keeps data, keys and logs between runs. Defaults to a temporary folder, removed at the
	// end.
	Dir string
	// Kubeconfig of a real cluster to use. Defaults to a kubelab.
	Kubeconfig string
	// Nodes of the kubelab. Defaults to its own default.
	Nodes int
	// DatabaseURL of a running PostgreSQL. Defaults to a private one.
	DatabaseURL string
	// APIListen is where the API listens. Defaults to a free port on 127.0.0.1.
	APIListen string
	// NATSPort is where NATS listens on 127.0.0.1. Defaults to a free one.
	NATSPort int
	// Image of the template default. Defaults to the state service's own.
	Image string
	// Workloads that the watchers tell of besides workspaces, and the service deploys of their
	// rollouts. Defaults to none; who enables them and names no annotations gets the watcher's own.
	Workloads watcher.Workloads
	// DeploysListen is where the API of deploys listens. Defaults to a free port on 127.0.0.1.
	DeploysListen string
	// Relays is how many of them run. Defaults to none: then agents have no relay agent.
	Relays int
	// RelayAgents is how many replicas each agent's relay agent has, each with a connection to
	// every relay. Defaults to 1.
	RelayAgents int
	// RelayListen is where the first relay listens for callers. Defaults to a free port on
	// 127.0.0.1.
	RelayListen string
	// Programs is a folder with the binaries state, watcher, dispatcher and, with workloads,
	// deploys, with relays, relay and relay-agent, which then run as programs of their own, each
	// with a configuration file, and can be killed. Defaults to none: services run in this process.
	Programs string
	// Progress receives a line for each step, for people. Defaults to nowhere.
	Progress io.Writer
	// Configure may change a service's configuration before each start. It is given State, Watcher,
	// Dispatcher, Deploys, Relay or RelayAgent, and a pointer to its Config, of which programs get
	// what can be written into a file. It may be called from any goroutine. Optional.
	Configure func(service string, config any)
}

func (o Options) withDefaults() Options {
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if o.APIListen == "" {
		o.APIListen = "127.0.0.1:0"
	}
	if o.DeploysListen == "" {
		o.DeploysListen = "127.0.0.1:0"
	}
	if o.RelayListen == "" {
		o.RelayListen = "127.0.0.1:0"
	}
	o.RelayAgents = max(1, o.RelayAgents)
	if o.Configure == nil {
		o.Configure = func(string, any) {}
	}
	return o
}
