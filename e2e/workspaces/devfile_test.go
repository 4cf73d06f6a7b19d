package workspaces_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/e2e/fixture"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

// TestDevfileCreatesWorkspace creates workspaces from the documented example.
func TestDevfileCreatesWorkspace(t *testing.T) {
	s := shared.Parallel(t)

	cli := s.CLI()
	example := filepath.Join("..", "..", "deploy", "examples", "devfile.yaml")
	place := []string{
		"--project",
		strconv.FormatInt(s.ProjectID, 10),
		"--agent",
		strconv.FormatInt(s.AgentID, 10),
		"-o",
		"json",
	}

	out := cli.OK(append([]string{"ws", "create", "--devfile", example}, place...)...)
	w := s.WorkspaceOf(fixture.ParseOutput(t, out, &statev1.CreateWorkspaceResponse{}).GetWorkspace())
	require.Equal(t, "shop-frontend", w.Name, "metadata.name is the name where none is given")
	shown := w.AwaitRunning()
	require.Equal(t, "2Gi", shown.GetSpec().GetVolumeSize())
	container := w.Pod().Spec.Containers[0]
	require.Equal(t, "registry.example/ide:1", container.Image, "variables are in place")
	require.Empty(t, container.Command)
	require.Equal(t, []string{"sleep", "infinity"}, container.Args)
	require.Equal(t, map[string]string{
		"NODE_ENV": "development", "DEBUG_PORT": "5858", "PROJECTS_ROOT": "/workspace", "PROJECT_SOURCE": "/workspace",
	}, variablesOf(container))
	require.Equal(t, "512Mi", container.Resources.Limits.Memory().String())
	require.Equal(t, "250m", container.Resources.Limits.Cpu().String())
	service, err := s.Kube.CoreV1().Services(w.Namespace).Get(t.Context(), w.Name, metav1.GetOptions{})
	require.NoError(t, err)
	require.Len(t, service.Spec.Ports, 1, "a port that is not exposed is left out")
	require.Equal(t, "web", service.Spec.Ports[0].Name)
	require.EqualValues(t, 3000, service.Spec.Ports[0].Port)
	require.Equal(t, "2Gi", w.Claim().Spec.Resources.Requests.Storage().String())

	// From standard input, with another name and overrides.
	raw, err := os.ReadFile(example)
	require.NoError(t, err)
	out = cli.WithInput(string(raw)).OK(
		append([]string{"ws", "create", "another-frontend", "--devfile", "-", "--env", "NODE_ENV=test", "--command", "serve"},
			place...)...)
	another := s.WorkspaceOf(fixture.ParseOutput(t, out, &statev1.CreateWorkspaceResponse{}).GetWorkspace())
	another.AwaitRunning()
	container = another.Pod().Spec.Containers[0]
	require.Equal(t, []string{"serve"}, container.Command)
	require.Empty(t, container.Args, "the arguments were another command's")
	require.Equal(t, "test", variablesOf(container)["NODE_ENV"])
	require.Equal(t, "5858", variablesOf(container)["DEBUG_PORT"])

	const invalid, taken = 2, 6
	require.Contains(t, cli.Fails(taken, append([]string{"ws", "create", "--devfile", example}, place...)...),
		"shop-frontend")
	refused := cli.WithInput(strings.Replace(string(raw), "commands:", "projects: [{name: shop}]\ncommands:", 1))
	require.Contains(t, refused.Fails(invalid, append([]string{"ws", "create", "--devfile", "-"}, place...)...),
		"projects[0].git: is missing")
	require.Contains(
		t,
		cli.Fails(invalid, append([]string{"ws", "create", "--devfile", example, "--template", "default"}, place...)...),
		"give a template or a devfile, not both",
	)
	require.Contains(t, cli.Fails(invalid, append([]string{"ws", "create", "--devfile", "no-such-file"}, place...)...),
		"no-such-file")

	another.Terminate()
	another.AwaitTerminated()
}

// variablesOf returns the plain environment variables of a container.
func variablesOf(container corev1.Container) map[string]string {
	plain := map[string]string{}
	for _, variable := range container.Env {
		plain[variable.Name] = variable.Value
	}
	return plain
}
