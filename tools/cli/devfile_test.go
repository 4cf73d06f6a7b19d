package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

func TestDevfileFromFileOrStandardInput(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "devfile.yaml")
	require.NoError(t, os.WriteFile(name, []byte("schemaVersion: 2.2.0\n"), 0o600))
	for given, want := range map[string]string{"": "", name: "schemaVersion: 2.2.0\n", "-": "piped"} {
		got, err := devfile(given, strings.NewReader("piped"))
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

func TestUnreadableDevfileIsInvalidArgument(t *testing.T) {
	t.Parallel()
	_, err := devfile(filepath.Join(t.TempDir(), "none.yaml"), strings.NewReader(""))
	require.True(t, fault.Is(err, errcode.InvalidArgument), err)
	_, err = devfile("-", strings.NewReader(""))
	require.True(t, fault.Is(err, errcode.InvalidArgument), err)
	endless := strings.NewReader(strings.Repeat("x", 1<<20))
	_, err = devfile("-", endless)
	require.True(t, fault.Is(err, errcode.PayloadTooLarge), err)
	require.Greater(t, endless.Len(), 900<<10, "reading stops at the limit")
}
