package s3

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/config"
)

func TestCredentialsAreReadAgainAfterAMinute(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "key")
	write := func(text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	write("one\n")
	now := time.Unix(0, 0)
	f := &files{access: config.SecretValue("id"), secret: config.SecretFile(path), now: func() time.Time { return now }}
	all := credentials.New(f)
	secret := func() string {
		value, err := all.GetWithContext(nil)
		require.NoError(t, err)
		require.Equal(t, "id", value.AccessKeyID)
		return value.SecretAccessKey
	}
	require.Equal(t, "one", secret())
	write("two\n")
	now = now.Add(rotation - 1)
	require.Equal(t, "one", secret())
	now = now.Add(1)
	require.Equal(t, "two", secret())
	require.NoError(t, os.Remove(path))
	now = now.Add(rotation)
	_, err := all.GetWithContext(nil)
	require.ErrorContains(t, err, "s3.secret_key_file")
	f.access = config.SecretFile(path)
	_, err = all.GetWithContext(nil)
	require.ErrorContains(t, err, "s3.access_key_file")
}
