package deployment_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"lockstep.internal/e2e/architecture"
	"lockstep.internal/tools/testkit/labtest"
)

func TestMain(m *testing.M) { labtest.Main(m) }

// content reads a file of the repository.
func content(t *testing.T, file string) []byte {
	t.Helper()
	root, err := architecture.Root()
	require.NoError(t, err)
	raw, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
	require.NoError(t, err)
	return raw
}

// document reads a YAML file with one document and resolves anchors and merges.
func document[T any](t *testing.T, file string) T {
	t.Helper()
	var into T
	require.NoError(t, yaml.Unmarshal(content(t, file), &into), file)
	return into
}

// services returns the folders in services/ that have a program of their name.
func services(t *testing.T) []string {
	t.Helper()
	root, err := architecture.Root()
	require.NoError(t, err)
	found, err := filepath.Glob(filepath.Join(root, "services", "*", "cmd", "*", "main.go"))
	require.NoError(t, err)
	names := make([]string, 0, len(found))
	for _, file := range found {
		program := filepath.Dir(file)
		if name := filepath.Base(filepath.Dir(filepath.Dir(program))); name == filepath.Base(program) {
			names = append(names, name)
		}
	}
	require.NotEmpty(t, names)
	return names
}
