package reload

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestChangedFileIsAppliedAndBrokenOneKeepsTheOld(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "rules")
	write := func(content string) { require.NoError(t, os.WriteFile(path, []byte(content), 0o600)) }
	write("one")
	var applied []string
	var logs bytes.Buffer
	w := &watcher[string]{applied: "one", source: Source[string]{
		Name: "rules_file", Logger: slog.New(slog.NewTextHandler(&logs, nil)),
		Read: func() (string, error) {
			raw, err := os.ReadFile(path)
			if err == nil && string(raw) == "broken" {
				err = errors.New("line 1 is wrong")
			}
			return string(raw), err
		},
		Apply: func(content string) error {
			if content == "insecure" {
				return errors.New("too short")
			}
			applied = append(applied, content)
			return nil
		},
	}}
	next := func() error {
		w.read(t.Context())
		return w.check(t.Context())
	}
	require.NoError(t, next())
	require.Empty(t, applied, "unchanged")
	write("two")
	require.NoError(t, next())
	write("broken")
	require.EqualError(t, next(), "rules_file is not reloaded, the last valid content stays in use: line 1 is wrong")
	require.ErrorContains(t, next(), "line 1 is wrong")
	write("insecure")
	require.ErrorContains(t, next(), "too short")
	require.NoError(t, os.Remove(path))
	require.ErrorContains(t, next(), "no such file")
	write("two")
	require.NoError(t, next(), "repaired")
	write("three")
	require.NoError(t, next())
	require.Equal(t, []string{"two", "three"}, applied)
	require.Equal(t, 1, bytes.Count(logs.Bytes(), []byte("line 1 is wrong")), "each error is logged once")
}
