// Package samples builds the sample programs of deploy/ as a user would: with the go command, and with npm and node. A
// tool that is missing fails the test. What is not in the caches comes from the Go module proxy and the npm registry.
package samples

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/architecture"
)

// Root returns the folder of the repository.
func Root(t *testing.T) string {
	t.Helper()
	dir, err := architecture.Root()
	require.NoError(t, err)
	return dir
}

// Go builds the program in a folder of the repository and returns its path.
func Go(t *testing.T, folder string) string {
	t.Helper()
	built := filepath.Join(t.TempDir(), "program")
	Build(t, filepath.Join(Root(t), folder), "go", "build", "-o", built, ".")
	return built
}

// TypeScript builds a copy of a folder of the repository and returns the folder of the copy.
func TypeScript(t *testing.T, folder string) string {
	t.Helper()
	for _, tool := range []string{"node", "npm"} {
		_, err := exec.LookPath(tool)
		require.NoError(t, err, "this test needs Node.js and npm: on Debian, apt-get install nodejs npm")
	}
	dir, sources := t.TempDir(), filepath.Join(Root(t), folder)
	for _, file := range []string{"package.json", "package-lock.json", "tsconfig.json"} {
		copyFile(t, sources, dir, file)
	}
	require.NoError(t, os.CopyFS(filepath.Join(dir, "src"), os.DirFS(filepath.Join(sources, "src"))))
	Build(t, dir, "npm", "ci", "--prefer-offline", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=3",
		"--fetch-timeout=60000")
	Build(t, dir, "npm", "run", "build")
	return dir
}

func copyFile(t *testing.T, from, to, name string) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(from, name))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(to, name), content, 0o600))
}

// Build runs a build command of a sample, whose module stands alone.
func Build(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), name, args...)
	command.Dir, command.Env = dir, append(os.Environ(), "GOWORK=off", "GOTOOLCHAIN=local",
		"npm_config_update_notifier=false")
	began := time.Now()
	out, err := command.CombinedOutput()
	require.NoError(t, err, "%s %s: %s\n\nWhat is not cached comes from %s, which has to be reachable from here.", name,
		strings.Join(args, " "), out, origin(t, dir, name))
	t.Logf("%s %s took %s", name, strings.Join(args, " "), time.Since(began).Round(time.Millisecond))
}

// origin is where a tool gets its dependencies.
func origin(t *testing.T, dir, name string) string {
	t.Helper()
	what, args := "the Go module proxy", []string{"env", "GOPROXY"}
	if name == "npm" {
		what, args = "the npm registry", []string{"config", "get", "registry"}
	}
	command := exec.CommandContext(context.WithoutCancel(t.Context()), name, args...)
	command.Dir = dir
	out, err := command.Output()
	if err != nil {
		return what
	}
	return what + " " + strings.TrimSpace(string(out))
}
