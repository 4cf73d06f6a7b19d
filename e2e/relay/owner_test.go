package relay_test

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"lockstep.internal/deploy"
	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/kubename"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

// installOwnerRole creates the role of owners as `lockstep agent manifest` prints it.
func installOwnerRole(s *fixture.System) {
	s.T.Helper()
	text, err := deploy.Agent{
		ID: s.AgentID, Components: []string{deploy.Dispatcher}, ImageRepository: "lockstep", ImageTag: "latest",
		NamespacePrefix: "ws-",
	}.Render()
	require.NoError(s.T, err)
	for document := range strings.SplitSeq(text, "---\n") {
		var role rbacv1.ClusterRole
		require.NoError(s.T, yaml.Unmarshal([]byte(document), &role))
		if role.Kind == "ClusterRole" && role.Name == kubename.OwnerRole(s.AgentID) {
			_, err := s.Kube.RbacV1().ClusterRoles().Create(s.T.Context(), &role, metav1.CreateOptions{})
			require.NoError(s.T, err)
			return
		}
	}
	require.FailNow(s.T, "no role of owners", "%s", text)
}

// TestOwnerUsesTheNamespaceOfTheWorkspaceAndOthersAreRefused uses kubectl through relay and relay agent.
func TestOwnerUsesTheNamespaceOfTheWorkspaceAndOthersAreRefused(t *testing.T) {
	s := shared.Parallel(t)
	installOwnerRole(s)
	_, ownerCLI := member(s, "workspace-owner", s.ProjectID, statev1.Role_ROLE_DEVELOPER)
	otherID, otherCLI := member(s, "workspace-neighbour", s.ProjectID, statev1.Role_ROLE_DEVELOPER)
	ownerCLI.OK("ws", "create", "owned", "--image", fixture.GoodImage,
		"--project", strconv.FormatInt(s.ProjectID, 10), "--agent", "local")
	made := fixture.ParseOutput(t, ownerCLI.OK("ws", "get", "owned", "-o", "json"),
		&statev1.GetWorkspaceResponse{}).GetWorkspace()
	w := &fixture.Workspace{T: t, System: s, ID: made.GetId(), Name: made.GetName(), Namespace: made.GetNamespace()}
	w.AwaitRunning()
	pods, err := s.Kube.CoreV1().Pods(w.Namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, pods.Items, 1)
	pod := pods.Items[0].Name

	owner, other := newKubectl(ownerCLI, "local", true), newKubectl(otherCLI, "local", true)
	fixture.AwaitCluster(t, "the owner may execute", func(context.Context) (bool, error) {
		_, out, _ := owner.Run("kubectl", "auth", "can-i", "create", "pods", "--subresource=exec", "-n", w.Namespace)
		return out == "yes\n", nil
	})
	fixture.AwaitCluster(t, "the relay knows the neighbour", func(context.Context) (bool, error) {
		_, out, _ := other.Run("kubectl", "auth", "whoami")
		return strings.Contains(out, kubename.User(otherID)), nil
	})
	require.Contains(t, owner.output("logs", "-n", w.Namespace, pod), "simulated container")
	require.Contains(t, owner.output("exec", "-n", w.Namespace, pod, "--", "id"), "id")
	require.Contains(t, owner.output("get", "-n", w.Namespace, "deployments,services,networkpolicies"), w.Name)
	refused := func(k kubectl, args ...string) {
		t.Helper()
		code, _, stderr := k.Run(append([]string{"kubectl", "-n", w.Namespace}, args...)...)
		require.NotZero(t, code)
		require.Contains(t, strings.ToLower(stderr), "forbidden")
	}
	for _, args := range [][]string{
		{"exec", pod, "--", "id"},
		{"attach", pod},
		{"delete", "pod", pod},
		{"get", "secrets"},
		{"create", "rolebinding", "mine", "--clusterrole", kubename.OwnerRole(s.AgentID), "--user", kubename.User(otherID)},
	} {
		refused(other, args...)
	}
	require.ErrorContains(t, throughRelay(otherCLI, "local").CoreV1().Pods(w.Namespace).
		Delete(t.Context(), pod, metav1.DeleteOptions{}), `User "`+kubename.User(otherID)+`" cannot delete resource "pods"`)
	for _, args := range [][]string{ // what is not the owner's
		{"get", "secrets"},
		{"scale", "deployment", w.Name, "--replicas", "0"},
		{"delete", "networkpolicy", w.Name},
		{"delete", "service", "-n", "kube-system", "kube-dns"},
	} {
		refused(owner, args...)
	}
	owner.output("delete", "pod", "-n", w.Namespace, pod)
	w.AwaitNewPod(pods.Items[0].UID)
	w.AwaitRunning()
}
