package deployment_test

import (
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
)

// workspaceOwner is the name of the owners of workspaces in docs/access.md.
const workspaceOwner = "owner of a workspace"

func matches(selector *metav1.LabelSelector, of map[string]string) bool {
	s, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && s.Matches(labels.Set(of))
}

func (s *manifestSet) addBindings(found accesses) error {
	bound := map[rbacv1.RoleRef]bool{}
	for _, b := range s.bindings {
		scope, ref := "cluster", rbacv1.RoleRef{Kind: b.RoleRef.Kind, Name: b.RoleRef.Name}
		if b.Kind == "RoleBinding" {
			scope = "namespace " + b.Namespace
		}
		if ref.Kind == "Role" {
			ref.Name = b.Namespace + "/" + ref.Name
		}
		bound[ref] = true
		all := []string{ref.Kind + " " + ref.Name} // of Kubernetes itself
		if rules, ok := s.rules[ref]; ok {
			all = permissions(rules)
		}
		for _, subject := range b.Subjects {
			program, err := s.subject(subject)
			if err != nil {
				return err
			}
			for _, permission := range all {
				found.add(program, scope+": "+permission)
			}
		}
	}
	for ref, rules := range s.rules {
		switch {
		case bound[ref]:
		case ref.Kind == "ClusterRole" && ref.Name == ownerRole:
			for _, permission := range permissions(rules) {
				found.add(workspaceOwner, "its namespace: "+permission)
			}
		default:
			return fmt.Errorf("%s %s is not bound: %w", ref.Kind, ref.Name, errUnknown)
		}
	}
	return nil
}

// subject returns the program of a ServiceAccount, or the name of a user or group.
func (s *manifestSet) subject(subject rbacv1.Subject) (string, error) {
	if subject.Kind != rbacv1.ServiceAccountKind {
		return strings.ToLower(subject.Kind) + " " + subject.Name, nil
	}
	for _, account := range s.accounts {
		program, ours := strings.CutPrefix(account.Name, "lockstep-")
		if ours && account.Name == subject.Name && account.Namespace == subject.Namespace {
			return program, nil
		}
	}
	return "", fmt.Errorf("subject %s: %w", subject.String(), errUnknown)
}

// permissions returns one text for each resource of rules.
func permissions(rules []rbacv1.PolicyRule) []string {
	var all []string
	for _, rule := range rules {
		verbs := strings.Join(slices.Sorted(slices.Values(rule.Verbs)), ", ")
		named := ""
		if len(rule.ResourceNames) > 0 {
			named = " named " + strings.Join(rule.ResourceNames, ", ")
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				all = append(all, strings.TrimSuffix(verbs+" "+resource+"."+group, ".")+named)
			}
		}
		for _, url := range rule.NonResourceURLs {
			all = append(all, verbs+" "+url)
		}
	}
	return all
}

// addNetworkPolicies adds the ways in and out of all workloads. Without a policy, everything is open.
func (s *manifestSet) addNetworkPolicies(found accesses) error {
	limited := map[string]bool{} // program/type
	for _, p := range s.networkPolicies {
		selected := s.selected(p.Namespace, &p.Spec.PodSelector)
		if len(selected) == 0 || len(p.Spec.PolicyTypes) == 0 {
			return fmt.Errorf("network policy %s selects nothing: %w", p.Name, errUnknown)
		}
		for _, w := range selected {
			for _, kind := range p.Spec.PolicyTypes {
				limited[w.program+"/"+string(kind)] = true
			}
			for _, rule := range p.Spec.Ingress {
				found.add(w.program, "reached by "+peers(rule.From)+" at "+ports(rule.Ports))
			}
			for _, rule := range p.Spec.Egress {
				found.add(w.program, "dials "+peers(rule.To)+" at "+ports(rule.Ports))
			}
		}
	}
	for _, w := range s.workloads {
		if !limited[w.program+"/"+string(networkingv1.PolicyTypeIngress)] {
			found.add(w.program, "reached by everybody at all ports")
		}
		if !limited[w.program+"/"+string(networkingv1.PolicyTypeEgress)] {
			found.add(w.program, "dials everybody at all ports")
		}
	}
	return nil
}

func peers(all []networkingv1.NetworkPolicyPeer) string {
	if len(all) == 0 {
		return "everybody"
	}
	names := make([]string, len(all))
	for i, p := range all {
		if p.IPBlock != nil {
			names[i] = p.IPBlock.String()
			continue
		}
		names[i] = selected(p.PodSelector) + "pods"
		if p.NamespaceSelector != nil {
			names[i] += " of " + selected(p.NamespaceSelector) + "namespaces"
		}
	}
	return strings.Join(names, ", ")
}

func selected(by *metav1.LabelSelector) string {
	if by == nil || len(by.MatchLabels)+len(by.MatchExpressions) == 0 {
		return "all "
	}
	return metav1.FormatLabelSelector(by) + " "
}

func ports(all []networkingv1.NetworkPolicyPort) string {
	if len(all) == 0 {
		return "all ports"
	}
	names := make([]string, len(all))
	for i, p := range all {
		names[i] = strings.TrimPrefix(string(ptr.Deref(p.Protocol, "TCP")), "TCP") + " " + p.Port.String()
		if p.EndPort != nil {
			names[i] += fmt.Sprintf("-%d", *p.EndPort)
		}
		names[i] = strings.TrimSpace(names[i])
	}
	return "port " + strings.Join(names, ", ")
}

// addPolicies adds the programs that an admission policy limits. It must apply to every request of the program, and
// deny.
func (s *manifestSet) addPolicies(found accesses) error {
	everything := &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
		RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{"CREATE", "UPDATE", "DELETE", "CONNECT"},
			Rule:       admissionv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"*/*"}},
		},
	}}}
	for _, p := range s.policies {
		whole := p.Spec.ParamKind == nil && ptr.Deref(p.Spec.FailurePolicy, "") == admissionv1.Fail &&
			equality.Semantic.DeepEqual(p.Spec.MatchConstraints, everything) && len(p.Spec.MatchConditions) == 1
		if !whole || !slices.Contains(s.denied, p.Name) {
			return fmt.Errorf("admission policy %s does not deny all: %w", p.Name, errUnknown)
		}
		for _, account := range s.accounts {
			user := "'system:serviceaccount:" + account.Namespace + ":" + account.Name + "'"
			if p.Spec.MatchConditions[0].Expression == "request.userInfo.username == "+user {
				found.add(strings.TrimPrefix(account.Name, "lockstep-"), "changes only what its admission policy permits")
			}
		}
	}
	return nil
}
