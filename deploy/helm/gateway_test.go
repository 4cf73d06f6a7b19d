package helm_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

const gatewayName = releaseName + "-gateway"

// withGateway returns the values of a release with the gateway.
func withGateway(section values) values {
	return merge(values{"gateway": values{"enabled": true, "zone": "ws.example"}}, values{"gateway": section})
}

func TestGatewayAndStateKnowEachOther(t *testing.T) {
	t.Parallel()
	loaded := load(t)
	r := render(t, loaded, "defaults", withGateway(values{}))
	gateway := variablesOf(decode[appsv1.Deployment](r, "Deployment/"+gatewayName))
	require.Equal(t, "ws.example", gateway["LOCKSTEP_ZONE"])
	require.Equal(t, "ws.example:22", gateway["LOCKSTEP_SSH_ADDRESS"])
	require.Equal(t, "http://ls-state.here.svc", gateway["LOCKSTEP_STATE_URL"])
	require.NotContains(t, gateway, "LOCKSTEP_SIGN_IN_ISSUER")

	state := decode[appsv1.Deployment](r, "Deployment/"+releaseName+"-state")
	variables := variablesOf(state)
	require.Equal(t, "https://sign-in.ws.example", variables["LOCKSTEP_GATEWAY_URL"])
	require.Contains(t, variables["LOCKSTEP_WORKSPACE_AGENT_IMAGE"], "lockstep/workspace-agent:")
	keys := map[string]string{}
	for _, e := range state.Spec.Template.Spec.Containers[0].Env {
		if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
			keys[e.Name] = e.ValueFrom.SecretKeyRef.Name + "/" + e.ValueFrom.SecretKeyRef.Key
		}
	}
	require.Equal(t, map[string]string{
		"LOCKSTEP_GATEWAY_PUBLIC_KEYS":       "ls-gateway/person.pub",
		"LOCKSTEP_WORKSPACE_SSH_AUTHORITIES": "ls-gateway/authority.pub",
	}, keys)

	// What an operator says about another gateway counts.
	r = render(t, loaded, "another", merge(withGateway(values{}), values{"state": values{"gateway": values{
		"url": "https://other.example", "publicKeys": []any{"ssh-ed25519 A", "ssh-ed25519 B"},
		"sshAuthorities": []any{"ssh-ed25519 C"}, "agentImage": "agent:1", "ingressPeers": []any{"other:a=b"},
	}}}))
	variables = variablesOf(decode[appsv1.Deployment](r, "Deployment/"+releaseName+"-state"))
	require.Equal(t, "https://other.example", variables["LOCKSTEP_GATEWAY_URL"])
	require.Equal(t, "ssh-ed25519 A,ssh-ed25519 B", variables["LOCKSTEP_GATEWAY_PUBLIC_KEYS"])
	require.Equal(t, "ssh-ed25519 C", variables["LOCKSTEP_WORKSPACE_SSH_AUTHORITIES"])
	require.Equal(t, "agent:1", variables["LOCKSTEP_WORKSPACE_AGENT_IMAGE"])
	require.Equal(t, "other:a=b", variables["LOCKSTEP_WORKSPACE_INGRESS_PEERS"])

	r = render(t, loaded, "without gateway", values{})
	require.NotContains(t, variablesOf(decode[appsv1.Deployment](r, "Deployment/"+releaseName+"-state")),
		"LOCKSTEP_WORKSPACE_INGRESS_PEERS")
}

func TestWorkspacesAdmitThePodsOfTheGateway(t *testing.T) {
	t.Parallel()
	r := render(t, load(t), "defaults", withGateway(values{}))
	state := variablesOf(decode[appsv1.Deployment](r, "Deployment/"+releaseName+"-state"))
	require.Equal(t, "lockstep-agent-{agent_id}:app.kubernetes.io/name=lockstep-relay-agent,"+
		"here:app.kubernetes.io/name=lockstep-gateway:app.kubernetes.io/instance=ls",
		state["LOCKSTEP_WORKSPACE_INGRESS_PEERS"])
	labels := decode[appsv1.Deployment](r, "Deployment/"+gatewayName).Spec.Template.Labels
	require.Equal(t, "lockstep-gateway", labels["app.kubernetes.io/name"])
	require.Equal(t, releaseName, labels["app.kubernetes.io/instance"])
}

func TestGatewayTunnelsThroughTheRelay(t *testing.T) {
	t.Parallel()
	loaded := load(t)
	tunnel := values{"mode": "tunnel", "relay": values{"secretName": "token"}}
	r := render(t, loaded, "tunnel", withGateway(values{"workspaces": tunnel}))
	gateway := variablesOf(decode[appsv1.Deployment](r, "Deployment/"+gatewayName))
	require.Equal(t, "tunnel", gateway["LOCKSTEP_WORKSPACES_MODE"])
	require.Equal(t, "https://ls-relay.here.svc:443", gateway["LOCKSTEP_RELAY_URL"])
	egress := decode[networkingv1.NetworkPolicy](r, "NetworkPolicy/"+gatewayName).Spec.Egress
	last := egress[len(egress)-1]
	require.Equal(t, int32(8086), last.Ports[0].Port.IntVal, "it reaches relays, not workspaces")
	require.Equal(t, "lockstep-relay", last.To[0].PodSelector.MatchLabels["app.kubernetes.io/name"])
	require.NotContains(t, variablesOf(decode[appsv1.Deployment](r, "Deployment/"+releaseName+"-state")),
		"LOCKSTEP_WORKSPACE_INGRESS_PEERS")
}

func TestIngressOfTheGatewayIsForItsZone(t *testing.T) {
	t.Parallel()
	loaded := load(t)
	for want, section := range map[string]values{
		"*.ws.example":    {},
		"*.ws2.example":   {"zone": "ws2.example:8443"},
		"sign-in.example": {"ingress": values{"host": "sign-in.example"}},
	} {
		given := withGateway(merge(values{"ingress": values{"enabled": true, "tlsSecretName": "t"}}, section))
		ingress := decode[networkingv1.Ingress](render(t, loaded, want, given), "Ingress/"+gatewayName)
		require.Equal(t, want, ingress.Spec.Rules[0].Host)
		require.Equal(t, []string{want}, ingress.Spec.TLS[0].Hosts)
	}
}

func TestGatewayWithoutWhatItNeedsIsRefused(t *testing.T) {
	t.Parallel()
	loaded := load(t)
	for want, section := range map[string]values{
		"gateway.zone is missing":              {"zone": ""},
		"gateway.workspaces.relay.secretName":  {"workspaces": values{"mode": "tunnel"}},
		"gateway.signIn.clientID is missing":   {"signIn": values{"issuer": "https://a", "secretName": "s"}},
		"gateway.signIn.secretName is missing": {"signIn": values{"issuer": "https://a", "clientID": "c"}},
	} {
		options := common.ReleaseOptions{Name: releaseName, Namespace: "here"}
		input, err := util.ToRenderValues(loaded, withGateway(section), options, common.DefaultCapabilities)
		require.NoError(t, err)
		_, err = engine.Render(loaded, input)
		require.ErrorContains(t, err, want)
	}
}
