package render

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"lockstep.internal/services/state/agent"
)

// Ports of DNS, and the limits of port numbers.
const (
	dnsPort = 53
	minPort = 1
	maxPort = 65535
)

// nodeLocalDNS is the address of the DNS cache on each node, where a cluster has one.
//
// See https://kubernetes.io/docs/tasks/administer-cluster/nodelocaldns.
const nodeLocalDNS = "169.254.20.10/32"

// networkPolicy allows ingress from the configured peers. Egress is allowed to the cluster's DNS, to all other ports of
// addresses that are not private, and to the allowed networks. NetworkPolicies are additive.
func (r rendering) networkPolicy() (networkingv1.NetworkPolicy, error) {
	policy := networkingv1.NetworkPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"},
		ObjectMeta: r.meta(r.Name),
		Spec: networkingv1.NetworkPolicySpec{
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
		},
	}
	from, err := r.pods(r.settings.IngressPeers)
	if err != nil {
		return policy, err
	}
	if len(from) > 0 {
		// An ingress rule without peers allows all sources.
		policy.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: from}}
	}
	public, allowed, err := r.egressPeers()
	if err != nil {
		return policy, err
	}
	dns, err := r.pods(r.settings.DNSPeers)
	if err != nil {
		return policy, err
	}
	dns = append(dns, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: nodeLocalDNS}})
	policy.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{
		{To: dns, Ports: ports(dnsPort, dnsPort)},
		{To: public, Ports: append(ports(minPort, dnsPort-1), ports(dnsPort+1, maxPort)...)},
	}
	if len(allowed) > 0 {
		policy.Spec.Egress = append(policy.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: allowed})
	}
	return policy, nil
}

func (r rendering) pods(peers []string) ([]networkingv1.NetworkPolicyPeer, error) {
	list := make([]networkingv1.NetworkPolicyPeer, 0, len(peers)+1)
	for _, text := range peers {
		p, err := agent.ParsePeer(text, r.AgentID)
		if err != nil {
			return nil, fmt.Errorf("peer: %w", err)
		}
		namespace := map[string]string{corev1.LabelMetadataName: p.Namespace}
		list = append(list, networkingv1.NetworkPolicyPeer{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: namespace},
			PodSelector:       &metav1.LabelSelector{MatchLabels: p.Labels},
		})
	}
	return list, nil
}

// ports returns a range of ports of UDP and TCP, both ends included.
func ports(first, last int32) []networkingv1.NetworkPolicyPort {
	list := make([]networkingv1.NetworkPolicyPort, 0, 4)
	for _, protocol := range []corev1.Protocol{corev1.ProtocolUDP, corev1.ProtocolTCP} {
		port := networkingv1.NetworkPolicyPort{Protocol: &protocol, Port: new(intstr.FromInt32(first))}
		if last != first {
			port.EndPort = &last
		}
		list = append(list, port)
	}
	return list
}

// egressPeers returns all public addresses (IPv4 and IPv6), and the allowed private networks.
func (r rendering) egressPeers() (public, allowed []networkingv1.NetworkPolicyPeer, err error) {
	v4, v6 := &networkingv1.IPBlock{CIDR: "0.0.0.0/0"}, &networkingv1.IPBlock{CIDR: "::/0"}
	for _, cidr := range r.settings.PrivateRanges {
		prefix, err := netip.ParsePrefix(cidr)
		switch {
		case err != nil:
			return nil, nil, fmt.Errorf("private range %q: %w", cidr, err)
		case prefix.Addr().Is4():
			v4.Except = append(v4.Except, cidr)
		default:
			v6.Except = append(v6.Except, cidr)
		}
	}
	for _, cidr := range r.settings.EgressAllowed {
		if _, err := netip.ParsePrefix(cidr); err != nil {
			return nil, nil, fmt.Errorf("allowed range %q: %w", cidr, err)
		}
		allowed = append(allowed, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: cidr}})
	}
	return []networkingv1.NetworkPolicyPeer{{IPBlock: v4}, {IPBlock: v6}}, allowed, nil
}
