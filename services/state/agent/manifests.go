package agent

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	"k8s.io/apimachinery/pkg/util/validation"

	"lockstep.internal/services/state/invalid"
	"lockstep.internal/services/state/workspace"
)

// Manifests configures the objects of workspaces.
type Manifests struct {
	// IngressPeers are the pods that may connect to workspaces. [ParsePeer] reads them.
	IngressPeers []string
	// DNSPeers are the pods that answer DNS queries. Workspaces reach no other address on port 53, except those of
	// EgressAllowed.
	DNSPeers []string
	// PrivateRanges are the networks that workspaces may not reach, in CIDR notation.
	PrivateRanges []string
	// EgressAllowed are exceptions from PrivateRanges, in CIDR notation.
	EgressAllowed []string
	// ProgressDeadline is progressDeadlineSeconds of the Deployment, in whole seconds. After it the workspace is failed.
	ProgressDeadline time.Duration
	// ResourceQuota enables a ResourceQuota in each namespace, sized for the workspace.
	ResourceQuota bool
	// OwnerAccess enables a RoleBinding in each namespace, with which the owner of the workspace uses the Kubernetes API
	// there.
	OwnerAccess bool
	// AgentImage is the image of the workspace agent, which every workspace gets. Empty: workspaces have no agent.
	AgentImage string
	// SSHAuthorities are public keys in the format of authorized_keys that sign the certificates of SSH connections to
	// workspaces.
	SSHAuthorities []string
}

// DefaultManifests returns the defaults: only the relay agent may connect, and no private network can be reached.
func DefaultManifests() Manifests {
	return Manifests{
		IngressPeers: []string{"lockstep-agent-" + agentIDPlaceholder + ":app.kubernetes.io/name=lockstep-relay-agent"},
		DNSPeers:     []string{"kube-system:k8s-app=kube-dns"},
		PrivateRanges: []string{
			"10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16",
			"::1/128", "fc00::/7", "fe80::/10",
		},
		ProgressDeadline: 10 * time.Minute, // time to pull a large image
	}
}

// Equal reports whether both render the same objects.
func (m Manifests) Equal(other Manifests) bool {
	return slices.Equal(m.IngressPeers, other.IngressPeers) && slices.Equal(m.DNSPeers, other.DNSPeers) &&
		slices.Equal(m.PrivateRanges, other.PrivateRanges) && slices.Equal(m.EgressAllowed, other.EgressAllowed) &&
		m.ProgressDeadline == other.ProgressDeadline && m.ResourceQuota == other.ResourceQuota &&
		m.OwnerAccess == other.OwnerAccess && m.AgentImage == other.AgentImage &&
		slices.Equal(m.SSHAuthorities, other.SSHAuthorities)
}

const (
	// agentIDPlaceholder stands for the id of the agent in the namespace of a peer.
	agentIDPlaceholder = "{agent_id}"
	// maxEntries limits the peers and networks of each list, and maxPeerLength each peer: they are part of every message
	// of DESIRED.
	maxEntries          = 50
	maxPeerLength       = 512
	maxProgressDeadline = 24 * time.Hour
)

// Peer selects pods of a namespace.
type Peer struct {
	Namespace string
	// Labels that the pods have; none for all pods of the namespace.
	Labels map[string]string
}

// ParsePeer reads a peer of an agent: NAMESPACE or NAMESPACE:LABEL=VALUE, with further labels after further colons.
// {agent_id} in the namespace stands for the id of the agent.
func ParsePeer(text string, agentID int64) (Peer, error) {
	parts := strings.Split(text, ":")
	p := Peer{Namespace: strings.ReplaceAll(parts[0], agentIDPlaceholder, strconv.FormatInt(agentID, 10))}
	if len(validation.IsDNS1123Label(p.Namespace)) > 0 {
		return p, fmt.Errorf("%.200q does not begin with the name of a namespace: use NAMESPACE:LABEL=VALUE", text)
	}
	for _, part := range parts[1:] {
		label, value, both := strings.Cut(part, "=")
		if !both || len(validation.IsQualifiedName(label)) > 0 || len(validation.IsValidLabelValue(value)) > 0 {
			return p, fmt.Errorf("%.80q of %.200q is not a label: use NAMESPACE:LABEL=VALUE", part, text)
		}
		if p.Labels == nil {
			p.Labels = map[string]string{}
		}
		if _, double := p.Labels[label]; double {
			return p, fmt.Errorf("%.200q has the label %s twice", text, label)
		}
		p.Labels[label] = value
	}
	return p, nil
}

func (m Manifests) validate(f *invalid.Fields) {
	for _, list := range []struct {
		path   string
		values []string
		check  func(string) error
	}{
		{"ingress_peers", m.IngressPeers, checkPeer},
		{"dns_peers", m.DNSPeers, checkPeer},
		{"private_ranges", m.PrivateRanges, checkNetwork},
		{"egress_allowed", m.EgressAllowed, checkNetwork},
		{"ssh_authorities", m.SSHAuthorities, checkAuthority},
	} {
		if len(list.values) > maxEntries {
			f.Addf(list.path, "has %d entries, the limit is %d", len(list.values), maxEntries)
			continue
		}
		for i, value := range list.values {
			if err := list.check(value); err != nil {
				f.Addf(list.path+"["+strconv.Itoa(i)+"]", "%v", err)
			}
		}
	}
	if m.AgentImage != "" && !workspace.IsImage(m.AgentImage) {
		f.Addf("agent_image", "%.80q is not an image reference such as registry.example/workspace-agent:1", m.AgentImage)
	}
	if m.ProgressDeadline < minDuration || m.ProgressDeadline > maxProgressDeadline {
		f.Addf("progress_deadline", "%s is not between %s and %s", m.ProgressDeadline, minDuration, maxProgressDeadline)
	} else if m.ProgressDeadline%time.Second != 0 {
		f.Addf("progress_deadline", "%s is not a whole number of seconds", m.ProgressDeadline)
	}
}

func checkAuthority(text string) error {
	if _, _, _, rest, err := ssh.ParseAuthorizedKey([]byte(text)); err != nil || len(rest) > 0 {
		return fmt.Errorf("%.80q is not a public key such as ssh-ed25519 AAAA…", text)
	}
	return nil
}

func checkPeer(text string) error {
	if len(text) > maxPeerLength {
		return fmt.Errorf("%.80q has %d characters, the limit is %d", text, len(text), maxPeerLength)
	}
	// What is valid with the longest id is valid for each agent.
	_, err := ParsePeer(text, math.MaxInt64)
	return err
}

// checkNetwork refuses what Kubernetes refuses in a network policy.
func checkNetwork(text string) error {
	prefix, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return fmt.Errorf("%.80q is not a network such as 10.0.0.0/8", text)
	case prefix.Addr().Is4In6():
		return fmt.Errorf("%q must be written as an IPv4 network", text)
	case prefix.Masked().String() != text:
		return fmt.Errorf("%q must be written as %s", text, prefix.Masked())
	case prefix.Bits() == 0:
		return fmt.Errorf("%q contains all addresses: use smaller networks", text)
	}
	return nil
}
