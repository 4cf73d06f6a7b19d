package render

import "time"

// Options are the cell's choices for every workspace.
type Options struct {
	// Ingress is from where workspaces may be reached. Defaults to the gateway and the relay agent in namespace lockstep.
	Ingress []Peer
	// PrivateRanges are the networks that workspaces may not reach, in CIDR notation. Defaults to the
	// private, shared, link-local and loopback ranges.
	PrivateRanges []string
	// EgressAllowed are networks within PrivateRanges that they may reach all the same. Defaults to none.
	EgressAllowed []string
	// StorageClass of the volumes. Defaults to the cluster's.
	StorageClass string
	// ProgressDeadline is how long a workspace may take to become ready before it is failed. Defaults to 10 min.
	ProgressDeadline time.Duration
	// ResourceQuota adds one to each namespace, sized for the workspace.
	ResourceQuota bool
}

// Peer is pods in namespaces, both by their labels.
type Peer struct {
	NamespaceLabels map[string]string
	PodLabels       map[string]string
}

// DefaultProgressDeadline is 10 minutes: a large image takes its time.
const DefaultProgressDeadline = 10 * time.Minute

func (o Options) withDefaults() Options {
	if o.Ingress == nil {
		namespace := map[string]string{"kubernetes.io/metadata.name": "lockstep"}
		o.Ingress = []Peer{
			{NamespaceLabels: namespace, PodLabels: map[string]string{"app.kubernetes.io/name": "lockstep-gateway"}},
			{NamespaceLabels: namespace, PodLabels: map[string]string{"app.kubernetes.io/name": "lockstep-relay-agent"}},
		}
	}
	if o.PrivateRanges == nil {
		o.PrivateRanges = []string{
			"10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16",
			"::1/128", "fc00::/7", "fe80::/10",
		}
	}
	if o.ProgressDeadline == 0 {
		o.ProgressDeadline = DefaultProgressDeadline
	}
	return o
}
