package deployment_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// agents are the programs that run in a cluster, by manifest file.
var agents = map[string][]string{"agent.yaml": {"watcher", "dispatcher"}, "relay-agent.yaml": {"relay-agent"}}

func TestAgentHasLeastPrivileges(t *testing.T) {
	t.Parallel()
	for file, programs := range agents {
		requireAgents(t, "deploy/kubernetes/"+file, programs)
	}
}

func requireAgents(t *testing.T, file string, programs []string) {
	t.Helper()
	deployments, budgets := map[string]appsv1.Deployment{}, map[string]policyv1.PodDisruptionBudget{}
	for _, raw := range manifests(t, file) {
		switch kind(t, raw) {
		case "Deployment":
			d := decode[appsv1.Deployment](t, raw)
			deployments[d.Name] = d
		case "PodDisruptionBudget":
			b := decode[policyv1.PodDisruptionBudget](t, raw)
			budgets[b.Name] = b
		default:
			require.FailNow(t, "unexpected kind", string(raw))
		}
	}
	require.Len(t, deployments, len(programs))
	for _, name := range programs {
		d := deployments["lockstep-"+name]
		require.Equal(t, d.Spec.Selector.MatchLabels, budgets[d.Name].Spec.Selector.MatchLabels)
		require.Subset(t, d.Spec.Template.Labels, d.Spec.Selector.MatchLabels)
		pod := d.Spec.Template.Spec
		account := serviceAccount(t, "deploy/rbac/"+name+".yaml")
		require.Equal(t, account.Name, pod.ServiceAccountName)
		require.Equal(t, account.Namespace, d.Namespace)
		environment := requirePod(t, name, pod)
		require.True(t,
			strings.HasPrefix(environment["LOCKSTEP_CREDENTIALS_FILE"], pod.Containers[0].VolumeMounts[0].MountPath+"/"))
	}
}

// requirePod checks what every pod must have and returns its environment.
func requirePod(t *testing.T, name string, pod corev1.PodSpec) map[string]string {
	t.Helper()
	require.True(t, *pod.SecurityContext.RunAsNonRoot)
	require.Equal(t, corev1.SeccompProfileTypeRuntimeDefault, pod.SecurityContext.SeccompProfile.Type)
	require.Len(t, pod.Containers, 1)
	c := pod.Containers[0]
	require.True(t, strings.HasPrefix(c.Image, "lockstep/"+name+":"))
	require.True(t, *c.SecurityContext.ReadOnlyRootFilesystem)
	require.False(t, *c.SecurityContext.AllowPrivilegeEscalation)
	require.Equal(t, []corev1.Capability{"ALL"}, c.SecurityContext.Capabilities.Drop)
	require.False(t, c.Resources.Limits.Memory().IsZero())
	environment := map[string]string{}
	for _, e := range c.Env {
		environment[e.Name] = e.Value
	}
	requireSettings(t, name, environment)
	require.Equal(t, ":8081", environment["LOCKSTEP_OPS_LISTEN"])
	require.EqualValues(t, 8081, c.Ports[0].ContainerPort)
	for path, probe := range map[string]*corev1.Probe{"/livez": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
		require.Equal(t, path, probe.HTTPGet.Path)
		require.Equal(t, c.Ports[0].Name, probe.HTTPGet.Port.String())
	}
	return environment
}

// serviceAccount returns the service account of a file, which a binding of the file must name.
func serviceAccount(t *testing.T, file string) corev1.ServiceAccount {
	t.Helper()
	var account corev1.ServiceAccount
	bound := 0
	for _, raw := range manifests(t, file) {
		switch kind(t, raw) {
		case "ServiceAccount":
			account = decode[corev1.ServiceAccount](t, raw)
		case "ClusterRoleBinding":
			b := decode[rbacv1.ClusterRoleBinding](t, raw)
			require.Equal(t, []rbacv1.Subject{{Kind: "ServiceAccount", Name: account.Name, Namespace: account.Namespace}},
				b.Subjects)
			bound++
		}
	}
	require.Positive(t, bound)
	return account
}

// manifests splits a file into its documents.
func manifests(t *testing.T, file string) [][]byte {
	t.Helper()
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content(t, file))))
	var found [][]byte
	for {
		raw, err := reader.Read()
		if errors.Is(err, io.EOF) {
			require.NotEmpty(t, found, file)
			return found
		}
		require.NoError(t, err, file)
		if len(bytes.TrimSpace(raw)) > 0 {
			found = append(found, raw)
		}
	}
}

func kind(t *testing.T, raw []byte) string {
	t.Helper()
	var typed struct{ Kind string }
	require.NoError(t, yaml.Unmarshal(raw, &typed))
	return typed.Kind
}

// decode decodes a document and refuses unknown fields.
func decode[T any](t *testing.T, raw []byte) T {
	t.Helper()
	var into T
	require.NoError(t, yaml.UnmarshalStrict(raw, &into), string(raw))
	return into
}
