package stack

import (
	"cmp"
	"io"
	"path/filepath"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/libs/workspaceagent"
	"lockstep.internal/services/watcher"
)

// Options of a stack. The zero value is a temporary one on free ports.
type Options struct {
	// Dir keeps data, keys and logs between runs. Defaults to a temporary folder, removed at the
	// end.
	Dir string
	// Cell and CellNumber identify the cell. Default to "local" and 0.
	Cell       topology.Cell
	CellNumber int64
	// MapCells are other cells, whose runners write to the cell map of this stack's NATS.
	MapCells []topology.Cell
	// WithoutCluster starts no kubelab and no agent: for those who need the services only.
	WithoutCluster bool
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
	// NATSURL has the servers of a running NATS, comma-separated, and NATSDir the folder that natsauth.Init wrote for
	// them. Defaults to an embedded server.
	NATSURL, NATSDir string
	// NATSPrincipals are users of the embedded NATS in addition to those of every cell. Defaults to none; for tests.
	NATSPrincipals []natsauth.StaticPrincipal
	// Image of the template default. Defaults to the state service's own.
	Image string
	// Workloads that the watchers report besides workspaces; they enable the deploys service. Defaults to none.
	// Empty annotations default to those of the watcher.
	Workloads watcher.Workloads
	// DeploysListen is where the API of deploys listens. Defaults to a free port on 127.0.0.1.
	DeploysListen string
	// Relays is the number of relays. Defaults to none: then agents have no relay agent.
	Relays int
	// RelayAgents is the number of replicas of each agent's relay agent. Each has a connection to every relay.
	// Defaults to 1.
	RelayAgents int
	// RelayListen is where the first relay listens for callers. Defaults to a free port on
	// 127.0.0.1.
	RelayListen string
	// Runners starts the runners service, and Router a router in front of it.
	Runners, Router bool
	// RunnersListen and RouterListen are where they listen. Default to free ports on 127.0.0.1.
	RunnersListen, RouterListen string
	// Admission starts the admission service. AdmissionListen is where it listens: a free port on 127.0.0.1 by default.
	Admission       bool
	AdmissionListen string
	// Gateway starts a gateway, and runs workspace agents as processes of this machine: it needs a kubelab.
	Gateway bool
	// GatewayListen and GatewaySSHListen are where the first gateway listens for browsers and for SSH. Default to free
	// ports on 127.0.0.1.
	GatewayListen, GatewaySSHListen string
	// WorkspaceAgent is the program that runs in workspaces. Defaults to that of Programs.
	WorkspaceAgent string
	// MapNATS and MapSeedFile are the NATS with the cell map and the key of this cell there, if it is that of another
	// stack.
	MapNATS, MapSeedFile string
	// Programs is a folder with the binaries state, watcher, dispatcher and, with workloads, deploys, with relays,
	// relay and relay-agent, with runners runners, with a router router, and for
	// a gateway both gateway and workspace-agent, which then run as separate processes that can be killed. Defaults to
	// none: services run in this process.
	Programs string
	// Progress receives one line per step. Defaults to io.Discard.
	Progress io.Writer
	// Configure may change a service's configuration before each start. service is the name of the replica, as for
	// Kill; config is a pointer to its Config. Programs get only what can be written into a file.
	// It may be called from any goroutine. Optional.
	Configure func(service string, config any)
}

func (o Options) withDefaults() Options {
	o.Cell = cmp.Or(o.Cell, Cell)
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
	o.RunnersListen, o.RouterListen = cmp.Or(o.RunnersListen, anyPort), cmp.Or(o.RouterListen, anyPort)
	o.AdmissionListen = cmp.Or(o.AdmissionListen, anyPort)
	o.GatewayListen, o.GatewaySSHListen = cmp.Or(o.GatewayListen, anyPort), cmp.Or(o.GatewaySSHListen, anyPort)
	if o.WorkspaceAgent == "" && o.Programs != "" {
		o.WorkspaceAgent = filepath.Join(o.Programs, workspaceagent.Program)
	}
	o.RelayAgents = max(1, o.RelayAgents)
	if o.Configure == nil {
		o.Configure = func(string, any) {}
	}
	return o
}
