package pg

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseMajor(t *testing.T) {
	t.Parallel()
	for printed, want := range map[string]int{
		"postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n": 15,
		"postgres (PostgreSQL) 17.2\n":                           17,
		"postgres (PostgreSQL) 18beta1\n":                        18,
		"postgres (PostgreSQL) 16":                               16,
	} {
		got, err := parseMajor(printed)
		require.NoError(t, err, printed)
		require.Equal(t, want, got, printed)
	}
	for _, printed := range []string{"", "postgres", "postgres (PostgreSQL) devel"} {
		_, err := parseMajor(printed)
		require.Error(t, err, printed)
	}
}

func TestPIDFileReady(t *testing.T) {
	t.Parallel()
	ready := "42\n/data\n1700000000\n5432\n/tmp\n127.0.0.1\n  1234 5\nready   \n"
	require.True(t, pidFileReady(ready, 42))
	require.False(t, pidFileReady(ready, 43), "written by another run")
	require.False(t, pidFileReady("42\n/data\n1700000000\n5432\n/tmp\n127.0.0.1\n  1234 5\nstarting\n", 42))
	require.False(t, pidFileReady("42\n/data\n", 42), "partial")
}
