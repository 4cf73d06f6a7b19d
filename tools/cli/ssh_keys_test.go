package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

func TestPublicKeyIsReadFromAFileOrStdin(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "key.pub")
	require.NoError(t, os.WriteFile(path, []byte("from a file"), 0o600))
	text, err := publicKey(strings.NewReader("from stdin"), path)
	require.NoError(t, err)
	require.Equal(t, "from a file", text)
	text, err = publicKey(strings.NewReader("from stdin"), "-")
	require.NoError(t, err)
	require.Equal(t, "from stdin", text)
	_, err = publicKey(nil, path+"x")
	require.ErrorContains(t, err, "read the public key")
}

func TestSSHKeysShowWhenTheyExpire(t *testing.T) {
	t.Parallel()
	got := sshKeyTable(
		&statev1.SSHKey{Name: "a", Fingerprint: "SHA256:x"},
		&statev1.SSHKey{Name: "b", Fingerprint: "SHA256:y", ExpiresAt: timestamppb.New(time.Now().Add(-time.Hour))},
	)
	require.Equal(t, "never", got.rows[0][3])
	require.Equal(t, "expired", got.rows[1][3])
}
