package certpool_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/certpool"
	"lockstep.internal/libs/internal/testcert"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestLoadReadsCertificates(t *testing.T) {
	t.Parallel()
	made := testcert.New(t)
	pool, err := certpool.Load(made.CAFile)
	require.NoError(t, err)
	require.True(t, pool.Equal(made.Pool))
	pem, err := certpool.ReadPEM(made.CAFile)
	require.NoError(t, err)
	raw, err := os.ReadFile(made.CAFile)
	require.NoError(t, err)
	require.Equal(t, raw, pem)
}

func TestLoadRejectsFilesWithoutCertificates(t *testing.T) {
	t.Parallel()
	_, key := testcert.New(t).Issue(t, t.TempDir(), "x")
	empty := filepath.Join(t.TempDir(), "empty.pem")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for _, file := range []string{key, empty} {
		_, err := certpool.Load(file)
		require.EqualError(t, err, file+" contains no certificate")
		_, err = certpool.ReadPEM(file)
		require.EqualError(t, err, file+" contains no certificate")
	}
	_, err := certpool.Load("/does/not/exist")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "read CA certificates: ")
}
