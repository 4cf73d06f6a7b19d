package deployment_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"lockstep.internal/deploy"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state"
	"lockstep.internal/services/state/render"
	"lockstep.internal/services/state/workspace"
)

// TestOnlyTheRelayAgentMayConnectToWorkspaces compares the default network policy of a workspace with the manifest that
// `lockstep agent manifest` prints for its agent.
func TestOnlyTheRelayAgentMayConnectToWorkspaces(t *testing.T) {
	t.Parallel()
	const id = 4711
	printed, err := deploy.Agent{
		ID: id, Components: []string{deploy.RelayAgent}, ImageRepository: "lockstep", ImageTag: "v1",
		RelayURLs: []string{"wss://relay.example"}, RelayPorts: []string{"443"},
		NamespacePrefix: "ws-",
	}.Render()
	require.NoError(t, err)
	var agent appsv1.Deployment
	for text := range strings.SplitSeq(printed, "---\n") {
		var kind metav1.TypeMeta
		require.NoError(t, yaml.Unmarshal([]byte(text), &kind))
		if kind.Kind == "Deployment" {
			require.NoError(t, yaml.UnmarshalStrict([]byte(text), &agent))
		}
	}
	require.NotEmpty(t, agent.Namespace)

	w, _, err := workspace.New(workspace.Creation{
		Name: "ide", ProjectID: 4, AgentID: id, UserID: 9, Spec: workspace.Spec{Image: "ide:9"},
	})
	require.NoError(t, err)
	w.ID = uuid.New()
	data, err := render.Desired(w, state.DefaultConfig().Workspace.Manifests())
	require.NoError(t, err)
	var desired events.DesiredWorkspace
	require.NoError(t, json.Unmarshal(data, &desired))
	var policy networkingv1.NetworkPolicy
	for _, manifest := range desired.Manifests {
		if manifest["kind"] == "NetworkPolicy" {
			raw, err := json.Marshal(manifest)
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(raw, &policy))
		}
	}
	require.Equal(t, []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{
		NamespaceSelector: &metav1.LabelSelector{
			MatchLabels: map[string]string{"kubernetes.io/metadata.name": agent.Namespace},
		},
		PodSelector: agent.Spec.Selector,
	}}}}, policy.Spec.Ingress)
	require.Subset(t, agent.Spec.Template.Labels, agent.Spec.Selector.MatchLabels)
}
