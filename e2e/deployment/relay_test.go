package deployment_test

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"

	"lockstep.internal/e2e/architecture"
	"lockstep.internal/services/relay/policy"
)

// relayManifests are those of the control plane's relay.
type relayManifests struct {
	replicas appsv1.StatefulSet
	account  corev1.ServiceAccount
	policy   networkingv1.NetworkPolicy
	budget   policyv1.PodDisruptionBudget
	services map[string]corev1.Service
}

func readRelayManifests(t *testing.T) relayManifests {
	t.Helper()
	found := relayManifests{services: map[string]corev1.Service{}}
	for _, raw := range manifests(t, "deploy/kubernetes/relay.yaml") {
		switch kind(t, raw) {
		case "StatefulSet":
			found.replicas = decode[appsv1.StatefulSet](t, raw)
		case "ServiceAccount":
			found.account = decode[corev1.ServiceAccount](t, raw)
		case "Service":
			s := decode[corev1.Service](t, raw)
			found.services[s.Name] = s
		case "NetworkPolicy":
			found.policy = decode[networkingv1.NetworkPolicy](t, raw)
		case "PodDisruptionBudget":
			found.budget = decode[policyv1.PodDisruptionBudget](t, raw)
		case "Namespace":
			require.Equal(t, "restricted", decode[corev1.Namespace](t, raw).Labels["pod-security.kubernetes.io/enforce"])
		default:
			require.FailNow(t, "unexpected kind", string(raw))
		}
	}
	return found
}

func TestRelaysHaveLeastPrivileges(t *testing.T) {
	t.Parallel()
	found := readRelayManifests(t)
	spec := found.replicas.Spec
	require.EqualValues(t, 2, *spec.Replicas)
	pod := spec.Template.Spec
	environment := requirePod(t, "relay", pod)
	require.False(t, *found.account.AutomountServiceAccountToken)
	require.False(t, *pod.AutomountServiceAccountToken)
	require.Equal(t, found.account.Name, pod.ServiceAccountName)
	labels := spec.Selector.MatchLabels
	require.Subset(t, spec.Template.Labels, labels)
	require.Equal(t, labels, found.budget.Spec.Selector.MatchLabels)
	require.Equal(t, labels, found.policy.Spec.PodSelector.MatchLabels)
	for _, file := range []string{"LOCKSTEP_NATS_NKEY_SEED_FILE", "LOCKSTEP_INTERNAL_SECRET_FILE"} {
		require.True(t, strings.HasPrefix(environment[file], pod.Containers[0].VolumeMounts[0].MountPath+"/"), file)
	}
	host := "wss://$(POD_NAME)." + spec.ServiceName + "." + found.replicas.Namespace + ".svc:"
	require.True(t, strings.HasPrefix(environment["LOCKSTEP_INTERNAL_URL"], host))

	ports := map[string]int32{}
	for _, p := range pod.Containers[0].Ports {
		ports[p.Name] = p.ContainerPort
	}
	leads := map[string]corev1.Service{}
	for _, s := range found.services {
		require.Equal(t, labels, s.Spec.Selector)
		require.Len(t, s.Spec.Ports, 1)
		leads[s.Spec.Ports[0].TargetPort.String()] = s
	}
	for _, listener := range []string{"external", "agents", "internal"} {
		prefix := "LOCKSTEP_" + strings.ToUpper(listener)
		require.Equal(t, ":"+strconv.Itoa(int(ports[listener])), environment[prefix+"_LISTEN"])
		require.NotEmpty(t, environment[prefix+"_TLS_CERT_FILE"], "%s speaks TLS", listener)
		require.Contains(t, leads, listener)
	}
	internal := leads["internal"]
	require.Equal(t, spec.ServiceName, internal.Name)
	require.Equal(t, corev1.ClusterIPNone, internal.Spec.ClusterIP)
	require.True(t, internal.Spec.PublishNotReadyAddresses, "one that is drained is still found")
	require.True(t,
		strings.HasSuffix(environment["LOCKSTEP_INTERNAL_URL"], ":"+strconv.Itoa(int(internal.Spec.Ports[0].Port))))
}

func TestOnlyRelaysReachInternalListener(t *testing.T) {
	t.Parallel()
	found := readRelayManifests(t)
	open := map[string]bool{}
	for _, rule := range found.policy.Spec.Ingress {
		for _, port := range rule.Ports {
			if len(rule.From) == 0 {
				open[port.Port.String()] = true
				continue
			}
			if port.Port.String() == "ops" {
				requireFromMonitoring(t, rule)
				continue
			}
			require.Equal(t, "internal", port.Port.String())
			require.Len(t, rule.From, 1)
			require.Nil(t, rule.From[0].NamespaceSelector)
			require.Equal(t, found.replicas.Spec.Selector.MatchLabels, rule.From[0].PodSelector.MatchLabels)
		}
	}
	require.Equal(t, map[string]bool{"external": true, "agents": true}, open)
}

func TestRelayAgentIsInComposeAndScraped(t *testing.T) {
	t.Parallel()
	compose := document[composeFile](t, "docker-compose.yml")
	agent := compose.Services["relay-agent"]
	require.Equal(t, "lockstep/relay-agent:${LOCKSTEP_VERSION:-latest}", agent.Image)
	requireSettings(t, "relay-agent", agent.Environment)
	require.Contains(t, string(content(t, "deploy/prometheus.yaml")),
		`"relay-agent`+agent.Environment["LOCKSTEP_OPS_LISTEN"]+`"`)
	for _, other := range []string{"relay-agent", "cli", "watcher", "dispatcher"} {
		for _, volume := range compose.Services[other].Volumes {
			require.False(t, strings.HasPrefix(volume, "relay-keys:"), "%s has the secret of relays", other)
		}
	}
}

func TestExampleOfCallersIsValid(t *testing.T) {
	t.Parallel()
	root, err := architecture.Root()
	require.NoError(t, err)
	rules, err := policy.ReadRules(filepath.Join(root, "deploy", "examples", "callers.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, rules)
}
