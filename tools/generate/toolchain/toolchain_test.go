package toolchain_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/tools/generate/toolchain"
)

// A module without tools is accepted. A tool that no module holds is an error before anything is
// built.
func TestOpenReadsThePins(t *testing.T) {
	t.Parallel()
	const toolWithoutModule = "module x\ntool example.test/a/cmd/b\nrequire example.test/other v1.0.0\n"
	for mod, want := range map[string]string{
		"module x\n":      "",
		toolWithoutModule: "tool example.test/a/cmd/b: no required module holds it",
		"no module":       "read the pinned tools",
	} {
		root := t.TempDir()
		require.NoError(t, os.MkdirAll(filepath.Join(root, "tools", "generate", "pinned"), 0o750))
		require.NoError(t, os.WriteFile(filepath.Join(root, "tools", "generate", "pinned", "go.mod"), []byte(mod), 0o600))
		var progress strings.Builder
		_, err := toolchain.Open(t.Context(), root, filepath.Join(root, "bin"), &progress)
		if want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, want)
		}
		require.Empty(t, progress.String())
	}
}

// A program of another version, and a file that is no such program, are built again.
func TestOpenBuildsToolsOfAnotherVersion(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	pinned := filepath.Join(root, "tools", "generate", "pinned")
	require.NoError(t, os.MkdirAll(pinned, 0o750))
	// The build fails at once and without the module proxy: the module's folder does not exist.
	mod := "module x\ngo 1.26.0\ntool example.test/a\nrequire example.test/a v1.0.0\nreplace example.test/a => ./gone\n"
	require.NoError(t, os.WriteFile(filepath.Join(pinned, "go.mod"), []byte(mod), 0o600))
	bin := filepath.Join(root, "bin")
	require.NoError(t, os.MkdirAll(bin, 0o750))
	self, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, os.Symlink(self, filepath.Join(bin, "a")))
	var progress strings.Builder
	_, err = toolchain.Open(t.Context(), root, bin, &progress)
	require.ErrorContains(t, err, "install the code generators")
	require.Contains(t, progress.String(), "building the code generators (example.test/a v1.0.0 is not in")
}
