package disk

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/objects/object"
)

func TestContentIsSyncedBeforeItsNameAndFoldersAfter(t *testing.T) {
	t.Parallel()
	s := New(Config{Folder: t.TempDir()})
	type call struct {
		name    string
		visible bool
	}
	var calls []call
	s.sync = func(file *os.File) error {
		name, err := filepath.Rel(s.folder, file.Name())
		require.NoError(t, err)
		reader, _, err := s.Open(t.Context(), "a")
		if err == nil {
			require.NoError(t, reader.Close())
		}
		calls = append(calls, call{name, err == nil})
		return file.Sync()
	}
	put := func(key string) {
		calls = nil
		_, err := s.Put(t.Context(), key, strings.NewReader("x"), 1)
		require.NoError(t, err)
	}
	put("a")
	folders, _ := location("a")
	require.Len(t, calls, 4)
	require.Equal(t, []call{{".", false}, {folders[0], false}}, calls[:2], "new folders")
	require.Contains(t, calls[2].name, folders[1]+"/"+temporary)
	require.False(t, calls[2].visible)
	require.Equal(t, call{folders[1], true}, calls[3])
	put("a")
	require.Len(t, calls, 2, "no new folders")
}

func TestFullDiskIsUnavailableAndLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, full := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		s := New(Config{Folder: t.TempDir()})
		_, err := s.Put(t.Context(), "b", strings.NewReader("x"), 1)
		require.NoError(t, err)
		s.sync = func(file *os.File) error { return &os.PathError{Op: "sync", Path: file.Name(), Err: full} }
		_, err = s.Put(t.Context(), "b", strings.NewReader("y"), 1)
		require.Equal(t, errcode.Unavailable, fault.From(err).Code)
		require.Contains(t, fault.From(err).Message, "has no free space")
		removed, err := s.Sweep(t.Context(), time.Now().Add(time.Hour))
		require.NoError(t, err)
		require.Zero(t, removed)
	}
}

func TestFailureOfTheFolderIsReported(t *testing.T) {
	t.Parallel()
	s := New(Config{Folder: t.TempDir()})
	s.sync = func(*os.File) error { return errors.New("device error") }
	_, err := s.Put(t.Context(), "b", strings.NewReader("y"), 1)
	require.Equal(t, errcode.Unavailable, fault.From(err).Code)
	_, _, err = s.Open(t.Context(), "b")
	require.ErrorIs(t, err, object.ErrNotFound)
}
