package desired_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/dispatcher/desired"
	"lockstep.internal/services/dispatcher/failure"
)

// check checks a workspace with one more manifest.
func check(t *testing.T, extra map[string]any) *failure.Failure {
	t.Helper()
	w, err := decode(t, data(func(w *events.DesiredWorkspace) { w.Manifests = append(w.Manifests, extra) }))
	require.NoError(t, err)
	return policy().Check(w)
}

func service(t *testing.T, spec string) map[string]any {
	t.Helper()
	m := manifest("v1", "Service", "w", "ws-7-a", "")
	var decoded any
	require.NoError(t, json.Unmarshal([]byte(spec), &decoded))
	m["spec"] = decoded
	return m
}

func TestServiceIsReachableInTheClusterOnly(t *testing.T) {
	t.Parallel()
	for spec, reason := range map[string]string{
		`{"type":"ClusterIP","selector":{"a":"b"},"ports":[{"name":"http","port":80,"targetPort":80,"protocol":"TCP"}]}`: "",
		`{"clusterIP":"None","clusterIPs":["None"],"publishNotReadyAddresses":true}`:                                     "",
		`{"clusterIP":"","ports":[]}`: "",
		`null`:                        "",
		`{}`:                          "",
		`{"type":"NodePort"}`:         "spec.type NodePort must be ClusterIP",
		`{"type":"LoadBalancer"}`:     "spec.type LoadBalancer must be ClusterIP",
		`{"type":"ExternalName"}`:     "spec.type ExternalName must be ClusterIP",
		`{"type":"clusterip"}`:        "must be ClusterIP",
		`{"type":7}`:                  "must be ClusterIP",
		`{"type":null}`:               "must be ClusterIP",
		`{"externalName":"metadata.google.internal"}`: "spec.externalName must not be set",
		`{"externalIPs":["10.96.0.10"]}`:              "spec.externalIPs must not be set",
		`{"ExternalIPs":["10.96.0.10"]}`:              "spec.ExternalIPs must not be set",
		`{"externalIPs":[]}`:                          "spec.externalIPs must not be set",
		`{"loadBalancerIP":"1.2.3.4"}`:                "spec.loadBalancerIP must not be set",
		`{"loadBalancerClass":"x"}`:                   "spec.loadBalancerClass must not be set",
		`{"loadBalancerSourceRanges":["0.0.0.0/0"]}`:  "spec.loadBalancerSourceRanges must not be set",
		`{"allocateLoadBalancerNodePorts":true}`:      "must not be set",
		`{"externalTrafficPolicy":"Local"}`:           "must not be set",
		`{"healthCheckNodePort":30000}`:               "must not be set",
		`{"ofALaterVersion":true}`:                    "must not be set",
		`{"ports":[{"port":80,"nodePort":30080}]}`:    "spec.ports.nodePort must not be set",
		`{"ports":{"port":80}}`:                       "spec.ports is not a list",
		`{"ports":[80]}`:                              "not an object",
		`{"clusterIP":"10.96.0.10"}`:                  "cluster IP 10.96.0.10",
		`{"clusterIPs":["10.96.0.10"]}`:               "cluster IP 10.96.0.10",
		`{"clusterIPs":"10.96.0.10"}`:                 "spec.clusterIPs is not a list",
		`[]`:                                          "spec is not an object",
	} {
		refusal := check(t, service(t, spec))
		if reason == "" {
			require.Nil(t, refusal, spec)
			continue
		}
		require.NotNil(t, refusal, spec)
		require.Equal(t, failure.NotAllowed, refusal.Reason)
		require.Contains(t, refusal.Message, reason, spec)
	}
}

// FuzzServiceIsReachableInTheClusterOnly decodes what the policy accepts as the API server does, and with less care
// about the case of field names.
func FuzzServiceIsReachableInTheClusterOnly(f *testing.F) {
	for _, seed := range []string{
		`{"type":"ClusterIP","ports":[{"port":80}]}`, `{"type":"LoadBalancer"}`, `{"externalIPs":["1.2.3.4"]}`,
		`{"clusterIP":"None"}`, `{"ports":[{"nodePort":1}]}`, `{"externalName":"x","type":"ExternalName"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, spec []byte) {
		var decoded corev1.ServiceSpec
		if json.Unmarshal(spec, &decoded) != nil || check(t, service(t, string(spec))) != nil {
			return
		}
		require.Contains(t, []corev1.ServiceType{"", corev1.ServiceTypeClusterIP}, decoded.Type)
		for _, address := range append(decoded.ClusterIPs, decoded.ClusterIP) {
			require.Contains(t, []string{"", corev1.ClusterIPNone}, address)
		}
		for i := range decoded.Ports {
			require.Zero(t, decoded.Ports[i].NodePort)
		}
		inside := corev1.ServiceSpec{
			Type: decoded.Type, ClusterIP: decoded.ClusterIP, ClusterIPs: decoded.ClusterIPs, Ports: decoded.Ports,
			Selector: decoded.Selector, PublishNotReadyAddresses: decoded.PublishNotReadyAddresses,
			SessionAffinity: decoded.SessionAffinity, SessionAffinityConfig: decoded.SessionAffinityConfig,
			IPFamilies: decoded.IPFamilies, IPFamilyPolicy: decoded.IPFamilyPolicy,
			InternalTrafficPolicy: decoded.InternalTrafficPolicy, TrafficDistribution: decoded.TrafficDistribution,
		}
		require.Equal(t, inside, decoded, "no other field is set")
	})
}

func TestNamespaceEnforcesTheLatestVersionOfPodSecurity(t *testing.T) {
	t.Parallel()
	const label = `"pod-security.kubernetes.io/enforce-version"`
	for value, allowed := range map[string]bool{
		`"latest"`: true, `"v1.0"`: false, `"v1.37"`: false, `""`: false, `"Latest"`: false,
	} {
		refusal := check(t, manifest("v1", desired.KindNamespace, "ws-7-a", "", `{"labels":{"lockstep.dev/agent":"7",
			"lockstep.dev/workspace":"`+id+`","pod-security.kubernetes.io/enforce":"restricted",`+label+`:`+value+`}}`))
		if allowed {
			require.Nil(t, refusal, value)
			continue
		}
		require.NotNil(t, refusal, value)
		require.Contains(t, refusal.Message, "must be latest")
	}
}
