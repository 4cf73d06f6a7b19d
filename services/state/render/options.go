package render

import "time"

// Options apply to every workspace of the cell.
type Options struct {
	// Ingress lists the pods that may connect to workspaces. Defaults to the gateway and the relay agent in
	// namespace lockstep.
	Ingress []Peer
	// DNS lists the pods that answer DNS queries. Workspaces reach no other address on port 53, except those of
	// EgressAllowed. Defaults to the pods with the label k8s-app=kube-dns in namespace kube-system.
	DNS []Peer
	// PrivateRanges are the networks that workspaces may not reach, in CIDR notation. Defaults to the
	// private, shared, link-local and loopback ranges.
	PrivateRanges []string
	// EgressAllowed are exceptions from PrivateRanges, in CIDR notation. Defaults to none.
	EgressAllowed []string
	// StorageClass of the volumes. Defaults to the cluster's.
	StorageClass string
	// ProgressDeadline is progressDeadlineSeconds of the Deployment. After it the workspace is failed.
	ProgressDeadline time.Duration
	// ResourceQuota enables a ResourceQuota in each namespace, sized for the workspace.
	ResourceQuota bool
}

// Peer selects pods by namespace labels and pod labels.
type Peer struct {
	NamespaceLabels map[string]string
	PodLabels       map[string]string
}

// DefaultProgressDeadline allows time to pull a large image.
const DefaultProgressDeadline = 10 * time.Minute

func (o Options) withDefaults() Options {
	if o.Ingress == nil {
		namespace := map[string]string{"kubernetes.io/metadata.name": "lockstep"}
		o.Ingress = []Peer{
			{NamespaceLabels: namespace, PodLabels: map[string]string{"app.kubernetes.io/name": "lockstep-gateway"}},
			{NamespaceLabels: namespace, PodLabels: map[string]string{"app.kubernetes.io/name": "lockstep-relay-agent"}},
		}
	}
	if o.DNS == nil {
		o.DNS = []Peer{{
			NamespaceLabels: map[string]string{"kubernetes.io/metadata.name": "kube-system"},
			PodLabels:       map[string]string{"k8s-app": "kube-dns"},
		}}
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
