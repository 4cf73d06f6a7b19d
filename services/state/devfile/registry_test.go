package devfile_test

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/state/devfile"
)

// TestStacksOfARegistryAreRead reads every devfile of a copy of a registry, such as that of
// https://github.com/devfile/registry, in the folder that LOCKSTEP_DEVFILE_REGISTRY names.
func TestStacksOfARegistryAreRead(t *testing.T) {
	t.Parallel()
	folder := os.Getenv("LOCKSTEP_DEVFILE_REGISTRY")
	if folder == "" {
		t.Skip("not shown: no registry of devfiles")
	}
	read, all := 0, 0
	require.NoError(t, filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Name() != "devfile.yaml" {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		all++
		parent := func(context.Context, devfile.Parent) ([]byte, error) { return data, nil }
		own, err := devfile.Read(data)
		child, childErr := devfile.Resolve(t.Context(), []byte("schemaVersion: 2.2.0\nparent: {id: stack}"), parent)
		require.Equal(t, err == nil, childErr == nil, "%s: %v", path, childErr)
		if err != nil {
			t.Logf("%s: %v", path, err)
		} else {
			read++
			own.Spec.Warnings, child.Spec.Warnings = nil, nil // those of the metadata, which are not inherited
			require.Equal(t, own.Spec, child.Spec, "a devfile with this parent is the same")
		}
		return nil
	}))
	t.Logf("%d of %d devfiles are read", read, all)
	require.NotZero(t, all)
	require.GreaterOrEqual(t, float64(read)/float64(all), 0.9)
}
