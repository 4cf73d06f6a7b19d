package render

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const dnsPort = 53

// networkPolicy allows ingress from the configured peers, and egress to DNS and to addresses that are not
// private. NetworkPolicies are additive.
func (r rendering) networkPolicy() (networkingv1.NetworkPolicy, error) {
	policy := networkingv1.NetworkPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"},
		ObjectMeta: r.meta(r.Name),
		Spec: networkingv1.NetworkPolicySpec{
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
		},
	}
	from := make([]networkingv1.NetworkPolicyPeer, 0, len(r.options.Ingress))
	for _, p := range r.options.Ingress {
		from = append(from, networkingv1.NetworkPolicyPeer{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: p.NamespaceLabels},
			PodSelector:       &metav1.LabelSelector{MatchLabels: p.PodLabels},
		})
	}
	if len(from) > 0 {
		// An ingress rule without peers allows all sources.
		policy.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: from}}
	}
	egress, err := r.egressPeers()
	if err != nil {
		return policy, err
	}
	dns := intstr.FromInt32(dnsPort)
	policy.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{
		{Ports: []networkingv1.NetworkPolicyPort{
			{Protocol: new(corev1.ProtocolUDP), Port: &dns},
			{Protocol: new(corev1.ProtocolTCP), Port: &dns},
		}},
		{To: egress},
	}
	return policy, nil
}

// egressPeers returns all public addresses (IPv4 and IPv6) and the allowed private networks.
func (r rendering) egressPeers() ([]networkingv1.NetworkPolicyPeer, error) {
	v4, v6 := &networkingv1.IPBlock{CIDR: "0.0.0.0/0"}, &networkingv1.IPBlock{CIDR: "::/0"}
	for _, cidr := range r.options.PrivateRanges {
		prefix, err := netip.ParsePrefix(cidr)
		switch {
		case err != nil:
			return nil, fmt.Errorf("private range %q: %w", cidr, err)
		case prefix.Addr().Is4():
			v4.Except = append(v4.Except, cidr)
		default:
			v6.Except = append(v6.Except, cidr)
		}
	}
	peers := []networkingv1.NetworkPolicyPeer{{IPBlock: v4}, {IPBlock: v6}}
	for _, cidr := range r.options.EgressAllowed {
		if _, err := netip.ParsePrefix(cidr); err != nil {
			return nil, fmt.Errorf("allowed range %q: %w", cidr, err)
		}
		peers = append(peers, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: cidr}})
	}
	return peers, nil
}
