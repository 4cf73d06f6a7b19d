package deployment_test

import (
	"encoding/json"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"lockstep.internal/deploy"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/render"
	"lockstep.internal/services/state/workspace"
)

// networkPod is a pod as network policies know it.
type networkPod struct {
	name, namespace string
	labels          map[string]string
}

// ownNamespace of the release of the chart.
const ownNamespace = "lockstep"

// gatewayPeer is the setting that docs/gateway.md names for the mode direct.
const gatewayPeer = ownNamespace + ":app.kubernetes.io/name=lockstep-gateway"

// networkObjects returns the pods and network policies of manifests.
func networkObjects(t *testing.T, documents [][]byte) (pods []networkPod, policies []networkingv1.NetworkPolicy) {
	t.Helper()
	for _, raw := range documents {
		switch kind(t, raw) {
		case "Deployment":
			d := decode[appsv1.Deployment](t, raw)
			pods = append(pods, networkPod{d.Name, d.Namespace, d.Spec.Template.Labels})
		case "NetworkPolicy":
			policies = append(policies, decode[networkingv1.NetworkPolicy](t, raw))
		}
	}
	return pods, policies
}

// agentObjects are those of an agent, as lockstep agent manifest prints them.
func agentObjects(t *testing.T, id int64) ([]networkPod, []networkingv1.NetworkPolicy) {
	t.Helper()
	printed, err := deploy.Agent{
		ID: id, Components: deploy.Components(), ImageRepository: "registry.example", ImageTag: "1", NamespacePrefix: "ws-",
		NATSPorts: []string{"4222"}, RelayPorts: []string{"443"}, RelayURLs: []string{"wss://relay.example"},
	}.Render()
	require.NoError(t, err)
	return networkObjects(t, split(t, []byte(printed)))
}

var chartLabels = regexp.MustCompile(`(?s)\{\{- define "lockstep\.(selector|labels)" -\}\}\n(.*?)\{\{- end \}\}`)

// chartPods are the pods of the chart's components and of the gateway, with the labels of its template lockstep.labels.
func chartPods(t *testing.T) []networkPod {
	t.Helper()
	templates := map[string]string{}
	helpers := string(content(t, "deploy/helm/lockstep/templates/_helpers.tpl"))
	for _, found := range chartLabels.FindAllStringSubmatch(helpers, -1) {
		templates[found[1]] = found[2]
	}
	const includesSelector = `{{ include "lockstep.selector" . }}` + "\n"
	require.Contains(t, templates["labels"], includesSelector)
	components := map[string]bool{"gateway": true}
	for _, file := range manifestFiles(t, "deploy/helm/lockstep/templates") {
		if strings.Contains(string(content(t, file)), `include "lockstep.podMetadata"`) {
			components[strings.TrimSuffix(path.Base(file), ".yaml")] = true
		}
	}
	require.Greater(t, len(components), 5)
	var pods []networkPod
	for name := range components {
		text := strings.NewReplacer(
			"{{ .name }}", name, "{{ .root.Release.Name }}", "lockstep", "{{ .root.Release.Service }}", "Helm",
		).Replace(strings.Replace(templates["labels"], includesSelector, templates["selector"], 1))
		require.NotContains(t, text, "{{")
		var labels map[string]string
		require.NoError(t, yaml.Unmarshal([]byte(text), &labels))
		pods = append(pods, networkPod{"lockstep-" + name, ownNamespace, labels})
	}
	return pods
}

// workspaceObjects are those that the state service renders for a workspace of the agent.
func workspaceObjects(
	t *testing.T, name string, agentID int64, m agent.Manifests,
) (networkPod, networkingv1.NetworkPolicy) {
	t.Helper()
	w, _, err := workspace.New(workspace.Creation{
		Name: name, ProjectID: 4, AgentID: agentID, UserID: 9, Now: time.Unix(0, 0),
		Spec: workspace.Spec{Image: "registry.example/ide:9", Ports: []workspace.Port{{Name: "http", Number: 3000}}},
	})
	require.NoError(t, err)
	w.ID = uuid.New()
	raw, err := render.Desired(w, m)
	require.NoError(t, err)
	var desired struct {
		Manifests []json.RawMessage `json:"manifests"`
	}
	require.NoError(t, json.Unmarshal(raw, &desired))
	var documents [][]byte
	for _, manifest := range desired.Manifests {
		documents = append(documents, manifest)
	}
	pods, policies := networkObjects(t, documents)
	require.Len(t, pods, 1)
	require.Len(t, policies, 1)
	return pods[0], policies[0]
}

// isPeer reports whether a rule's peers include a pod. No peer is everybody. A block of addresses is no pod: their
// addresses are private.
func isPeer(t *testing.T, peers []networkingv1.NetworkPolicyPeer, namespace string, pod networkPod) bool {
	t.Helper()
	return len(peers) == 0 || slices.ContainsFunc(peers, func(p networkingv1.NetworkPolicyPeer) bool {
		if p.IPBlock != nil {
			return false
		}
		inNamespace := namespace == pod.namespace
		if p.NamespaceSelector != nil {
			inNamespace = matches(p.NamespaceSelector, map[string]string{corev1.LabelMetadataName: pod.namespace})
		}
		return inNamespace && (p.PodSelector == nil || matches(p.PodSelector, pod.labels))
	})
}

// admits reports whether policies let one pod connect to another at a port, as a cluster that enforces them does.
func admits(t *testing.T, policies []networkingv1.NetworkPolicy, from, to networkPod, port int32) bool {
	t.Helper()
	direction := func(kind networkingv1.PolicyType, of, other networkPod) bool {
		limited, allowed := false, false
		for _, p := range policies {
			if p.Namespace != of.namespace || !matches(&p.Spec.PodSelector, of.labels) ||
				!slices.Contains(p.Spec.PolicyTypes, kind) {
				continue
			}
			limited = true
			for _, rule := range p.Spec.Ingress {
				allowed = allowed || kind == networkingv1.PolicyTypeIngress && isPeer(t, rule.From, p.Namespace, other) &&
					hasPort(rule.Ports, port)
			}
			for _, rule := range p.Spec.Egress {
				allowed = allowed || kind == networkingv1.PolicyTypeEgress && isPeer(t, rule.To, p.Namespace, other) &&
					hasPort(rule.Ports, port)
			}
		}
		return !limited || allowed
	}
	return direction(networkingv1.PolicyTypeEgress, from, to) && direction(networkingv1.PolicyTypeIngress, to, from)
}

func hasPort(ports []networkingv1.NetworkPolicyPort, number int32) bool {
	return len(ports) == 0 || slices.ContainsFunc(ports, func(p networkingv1.NetworkPolicyPort) bool {
		first := p.Port.IntVal // 0 for a name, which no port of workspaces has
		last := first
		if p.EndPort != nil {
			last = *p.EndPort
		}
		return (p.Protocol == nil || *p.Protocol == corev1.ProtocolTCP) && first <= number && number <= last
	})
}

// TestWorkspacesAreReachedByTheGatewayOrTheRelayAgentOnly evaluates the policy of a workspace against all pods that the
// manifests and the chart describe, and against pods that pretend.
func TestWorkspacesAreReachedByTheGatewayOrTheRelayAgentOnly(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		peers []string
		want  []string
	}{
		"tunnel": {agent.DefaultManifests().IngressPeers, []string{"lockstep-relay-agent of lockstep-agent-7"}},
		"direct": {[]string{gatewayPeer}, []string{"lockstep-gateway of lockstep"}},
		"both": {
			append(agent.DefaultManifests().IngressPeers, gatewayPeer),
			[]string{"lockstep-gateway of lockstep", "lockstep-relay-agent of lockstep-agent-7"},
		},
		"nobody": {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := agent.DefaultManifests()
			m.IngressPeers = c.peers
			hello, policy := workspaceObjects(t, "hello", 7, m)
			require.True(t, matches(&policy.Spec.PodSelector, hello.labels), "the policy is for the pod")
			require.Equal(t, hello.namespace, policy.Namespace)
			other, otherPolicy := workspaceObjects(t, "other", 7, m)
			require.NotEqual(t, hello.namespace, other.namespace)
			pods, policies := agentObjects(t, 7)
			others, othersPolicies := agentObjects(t, 8)
			policies = append(append(policies, othersPolicies...), policy, otherPolicy)
			pods = append(append(append(pods, others...), chartPods(t)...), other, networkPod{"pod", "default", nil})
			for _, pod := range slices.Clone(pods) { // whoever can set labels in another namespace
				for _, namespace := range []string{"default", other.namespace, hello.namespace} {
					pods = append(pods, networkPod{"pretends to be " + pod.name, namespace, pod.labels})
				}
			}
			for _, port := range []int32{3000, 60022, 22, 443} {
				var reached []string
				for _, pod := range pods {
					if admits(t, policies, pod, hello, port) {
						reached = append(reached, pod.name+" of "+pod.namespace)
					}
				}
				slices.Sort(reached)
				require.Equal(t, c.want, reached, "port %d", port)
			}
			require.False(t, admits(t, policies, hello, other, 3000), "workspaces do not reach each other")
			for _, pod := range pods {
				require.False(t, admits(t, policies, hello, pod, 3000), "a workspace reaches %s", pod.name)
			}
		})
	}
}

// TestPolicyEvaluationKnowsWhatClustersDo checks the evaluation itself.
func TestPolicyEvaluationKnowsWhatClustersDo(t *testing.T) {
	t.Parallel()
	a, b := networkPod{"a", "x", map[string]string{"app": "a"}}, networkPod{"b", "y", map[string]string{"app": "b"}}
	policy := func(ingress ...networkingv1.NetworkPolicyIngressRule) []networkingv1.NetworkPolicy {
		return []networkingv1.NetworkPolicy{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "y"},
			Spec: networkingv1.NetworkPolicySpec{
				PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}, Ingress: ingress,
			},
		}}
	}
	app := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}
	require.True(t, admits(t, nil, a, b, 1), "no policy")
	require.False(t, admits(t, policy(), a, b, 1), "no rule")
	require.True(t, admits(t, policy(networkingv1.NetworkPolicyIngressRule{}), a, b, 1), "an empty rule")
	require.False(t, admits(t, policy(networkingv1.NetworkPolicyIngressRule{
		From: []networkingv1.NetworkPolicyPeer{{PodSelector: app}},
	}), a, b, 1), "a pod selector without namespaces is for the policy's namespace")
	require.True(t, admits(t, policy(networkingv1.NetworkPolicyIngressRule{
		From: []networkingv1.NetworkPolicyPeer{{PodSelector: app, NamespaceSelector: &metav1.LabelSelector{}}},
	}), a, b, 1), "an empty namespace selector is for all namespaces")
}
