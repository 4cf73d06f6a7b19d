package deployment_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"lockstep.internal/deploy"
	"lockstep.internal/e2e/architecture"
)

func TestManifestsOfAgentFitTheProgram(t *testing.T) {
	t.Parallel()
	for _, name := range deploy.Components() {
		requireComponent(t, name)
	}
}

// requireComponent checks the manifests of a program that runs in the clusters of agents.
func requireComponent(t *testing.T, name string) {
	t.Helper()
	var d appsv1.Deployment
	var budget policyv1.PodDisruptionBudget
	var policy networkingv1.NetworkPolicy
	for _, raw := range manifests(t, "deploy/kubernetes/"+name+".yaml") {
		switch kind(t, raw) {
		case "Deployment":
			d = decode[appsv1.Deployment](t, raw)
		case "PodDisruptionBudget":
			budget = decode[policyv1.PodDisruptionBudget](t, raw)
		case "NetworkPolicy":
			policy = decode[networkingv1.NetworkPolicy](t, raw)
		default:
			require.FailNow(t, "unexpected kind", string(raw))
		}
	}
	require.Equal(t, "lockstep-"+name, d.Name)
	require.Equal(t, d.Spec.Selector.MatchLabels, budget.Spec.Selector.MatchLabels)
	require.Subset(t, d.Spec.Template.Labels, d.Spec.Selector.MatchLabels)
	requireOnlyDials(t, d, policy)
	pod := d.Spec.Template.Spec
	account := serviceAccount(t, "deploy/rbac/"+name+".yaml")
	require.Equal(t, account.Name, pod.ServiceAccountName)
	require.Equal(t, account.Namespace, d.Namespace)
	environment := requirePod(t, name, pod)
	require.True(t,
		strings.HasPrefix(environment["LOCKSTEP_CREDENTIALS_FILE"], pod.Containers[0].VolumeMounts[0].MountPath+"/"))
}

// requireOnlyDials checks that only the ops port can be reached, and that every way out names ports or pods.
func requireOnlyDials(t *testing.T, d appsv1.Deployment, policy networkingv1.NetworkPolicy) {
	t.Helper()
	require.Equal(t, d.Spec.Selector.MatchLabels, policy.Spec.PodSelector.MatchLabels)
	require.Len(t, policy.Spec.PolicyTypes, 2)
	require.Len(t, policy.Spec.Ingress, 1)
	require.Len(t, policy.Spec.Ingress[0].Ports, 1)
	require.Equal(t, "ops", policy.Spec.Ingress[0].Ports[0].Port.String())
	requireFromMonitoring(t, policy.Spec.Ingress[0])
	for _, rule := range policy.Spec.Egress {
		require.NotZero(t, len(rule.Ports)+len(rule.To), "%s may reach everything", d.Name)
	}
}

// requireFromMonitoring requires that only Prometheus reaches the ports of a rule.
func requireFromMonitoring(t *testing.T, rule networkingv1.NetworkPolicyIngressRule) {
	t.Helper()
	require.Len(t, rule.From, 1)
	require.Equal(t, map[string]string{corev1.LabelMetadataName: "monitoring"}, rule.From[0].NamespaceSelector.MatchLabels)
}

// requirePod checks what every pod must have and returns its environment.
func requirePod(t *testing.T, name string, pod corev1.PodSpec) map[string]string {
	t.Helper()
	require.Len(t, pod.Containers, 1)
	c := pod.Containers[0]
	require.True(t, strings.HasPrefix(c.Image, "lockstep/"+name+":"))
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
		case "Namespace":
			require.Equal(t, "restricted", decode[corev1.Namespace](t, raw).Labels["pod-security.kubernetes.io/enforce"], file)
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
	return split(t, content(t, file))
}

// manifestFiles returns the files in folders of the repository and below.
func manifestFiles(t *testing.T, folders ...string) []string {
	t.Helper()
	root, err := architecture.Root()
	require.NoError(t, err)
	var files []string
	for _, folder := range folders {
		err = fs.WalkDir(os.DirFS(root), folder, func(name string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				files = append(files, name)
			}
			return err
		})
		require.NoError(t, err)
	}
	return files
}

// split splits YAML into its documents.
func split(t *testing.T, text []byte) [][]byte {
	t.Helper()
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	var found [][]byte
	for {
		raw, err := reader.Read()
		if errors.Is(err, io.EOF) {
			require.NotEmpty(t, found)
			return found
		}
		require.NoError(t, err)
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
