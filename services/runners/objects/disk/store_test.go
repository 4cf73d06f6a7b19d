package disk_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/objects"
	"lockstep.internal/services/runners/objects/disk"
	"lockstep.internal/services/runners/objects/objectstest"
)

func TestStore(t *testing.T) {
	t.Parallel()
	objectstest.Run(t, func(t *testing.T) objects.Config {
		cfg := objects.DefaultConfig()
		cfg.Disk.Folder = t.TempDir()
		return cfg
	})
}

func TestMissingFolderIsUnavailable(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "volume")
	store := disk.New(disk.Config{Folder: folder})
	err := store.Check(t.Context())
	require.Equal(t, errcode.Unavailable, fault.From(err).Code)
	require.ErrorContains(t, err, "create it, or mount its volume")
	_, err = store.Put(t.Context(), "a", strings.NewReader("x"), 1)
	require.Equal(t, errcode.Unavailable, fault.From(err).Code)
	_, _, err = store.Open(t.Context(), "a")
	require.Equal(t, errcode.Unavailable, fault.From(err).Code, "not found would be final")
	require.Equal(t, errcode.Unavailable, fault.From(store.Delete(t.Context(), "a")).Code)
	for _, err := range store.List(t.Context(), time.Now()) {
		require.Equal(t, errcode.Unavailable, fault.From(err).Code)
	}
	require.NoError(t, os.Mkdir(folder, 0o700), "the volume is mounted")
	require.NoError(t, store.Check(t.Context()))
	_, err = store.Put(t.Context(), "a", strings.NewReader("x"), 1)
	require.NoError(t, err)
}

func TestSymbolicLinkDoesNotLeadOutOfTheFolder(t *testing.T) {
	t.Parallel()
	folder, outside := t.TempDir(), t.TempDir()
	store := disk.New(disk.Config{Folder: folder})
	_, err := store.Put(t.Context(), "a", strings.NewReader("x"), 1)
	require.NoError(t, err)
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	first := filepath.Join(folder, entries[0].Name())
	require.NoError(t, os.Rename(first, filepath.Join(outside, "moved")))
	require.NoError(t, os.Symlink(filepath.Join(outside, "moved"), first))
	_, _, err = store.Open(t.Context(), "a")
	require.ErrorContains(t, err, "escapes")
	_, err = store.Put(t.Context(), "a", strings.NewReader("y"), 1)
	require.ErrorContains(t, err, "escapes")
}

func TestOtherFilesAreNotListedAndStay(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	store := disk.New(disk.Config{Folder: folder})
	other := filepath.Join(folder, "12", "34", "someone")
	require.NoError(t, os.MkdirAll(filepath.Dir(other), 0o700))
	require.NoError(t, os.WriteFile(other, []byte("x"), 0o600))
	for entry, err := range store.List(t.Context(), time.Now().Add(time.Hour)) {
		require.NoError(t, err)
		require.Fail(t, "listed", entry.Key)
	}
	removed, err := store.Sweep(t.Context(), time.Now().Add(time.Hour))
	require.NoError(t, err)
	require.Zero(t, removed)
	require.FileExists(t, other)
}

func TestOnlyTheServiceReadsFiles(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	store := disk.New(disk.Config{Folder: folder})
	_, err := store.Put(t.Context(), "a/b", strings.NewReader("x"), 1)
	require.NoError(t, err)
	files := 0
	require.NoError(t, filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		require.NoError(t, err)
		if path == folder {
			return nil
		}
		info, err := entry.Info()
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o077, path)
		files++
		return nil
	}))
	require.Equal(t, 3, files)
}

func TestConfigNeedsAnAbsoluteFolder(t *testing.T) {
	t.Parallel()
	for _, folder := range []string{"", "artifacts"} {
		problems := disk.Config{Folder: folder}.Problems()
		require.Len(t, problems, 1)
		require.ErrorContains(t, problems[0], "disk.folder")
	}
	require.Empty(t, disk.Config{Folder: "/srv"}.Problems())
}
