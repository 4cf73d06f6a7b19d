package artifact_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/artifact"
	"lockstep.internal/services/runners/objects"
	"lockstep.internal/services/runners/objects/disk"
)

func store(t *testing.T) objects.Store {
	t.Helper()
	return disk.New(disk.Config{Folder: t.TempDir()})
}

func keys(t *testing.T, store objects.Store) []string {
	t.Helper()
	var found []string
	for entry, err := range store.List(t.Context(), time.Now().Add(time.Hour)) {
		require.NoError(t, err)
		found = append(found, entry.Key)
	}
	return found
}

func upload(format artifact.Format) artifact.Upload {
	return artifact.Upload{
		JobID: 17, Kind: artifact.Kind{Type: artifact.Archive, Format: format}, Limit: 1 << 20,
		Bounds: artifact.DefaultBounds(),
	}
}

func TestReceivedArtifactIsStored(t *testing.T) {
	t.Parallel()
	objects, file := store(t), archive(t, "a", "text")
	got, err := artifact.Receive(t.Context(), objects, upload(artifact.Zip), bytes.NewReader(file))
	require.NoError(t, err)
	require.Equal(t, artifact.Report{Entries: 1, Verified: true}, got.Report)
	require.EqualValues(t, len(file), got.Info.Size)
	require.Equal(t, []string{got.Key}, keys(t, objects))
	content, _, err := objects.Open(t.Context(), got.Key)
	require.NoError(t, err)
	defer content.Close()
	stored, err := io.ReadAll(content)
	require.NoError(t, err)
	require.Equal(t, file, stored)
}

func TestRefusedUploadLeavesNothing(t *testing.T) {
	t.Parallel()
	lost := errors.New("the connection broke")
	file := archive(t, "a", "text")
	for name, test := range map[string]struct {
		content io.Reader
		check   func(error)
	}{
		"empty":     {strings.NewReader(""), func(err error) { requireInvalid(t, err, "it is empty") }},
		"truncated": {bytes.NewReader(file[:20]), func(err error) { requireInvalid(t, err, "it is no complete zip") }},
		"too large": {io.LimitReader(zeros{}, 2<<20), func(err error) { require.ErrorIs(t, err, objects.ErrTooLarge) }},
		"interrupted": {
			io.MultiReader(bytes.NewReader(file), &failing{lost}), func(err error) { require.ErrorIs(t, err, lost) },
		},
	} {
		objects := store(t)
		_, err := artifact.Receive(t.Context(), objects, upload(artifact.Zip), test.content)
		require.Error(t, err, name)
		test.check(err)
		require.Empty(t, keys(t, objects), name)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

type failing struct{ err error }

func (r *failing) Read([]byte) (int, error) { return 0, r.err }

// unreadable stores objects that cannot be read back.
type unreadable struct {
	objects.Store

	before func()
	err    error
}

func (u *unreadable) OpenAt(context.Context, string) (objects.ReaderAt, int64, error) {
	u.before()
	return nil, 0, u.err
}

func TestObjectIsDeletedAfterTheCallerHasGone(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	broken := &unreadable{Store: store(t), before: cancel, err: errors.New("the store is down")}
	_, err := artifact.Receive(ctx, broken, upload(artifact.Zip), bytes.NewReader(archive(t)))
	require.ErrorIs(t, err, broken.err)
	require.Error(t, ctx.Err())
	require.Empty(t, keys(t, broken))
}

func TestCollectDeletesWhatHasNoRow(t *testing.T) {
	t.Parallel()
	all, rows := store(t), map[string]bool{}
	for i := range 620 {
		key := fmt.Sprintf("jobs/%d", i)
		_, err := all.Put(t.Context(), key, strings.NewReader("x"), 1)
		require.NoError(t, err)
		if i%100 == 0 {
			rows[key] = true
		}
	}
	calls := 0
	named := func(_ context.Context, keys []string) (map[string]bool, error) {
		calls++
		require.LessOrEqual(t, len(keys), 500)
		return rows, nil
	}
	done, err := artifact.Collect(t.Context(), all, time.Now().Add(-time.Hour), named)
	require.NoError(t, err)
	require.Zero(t, done, "uploads may still run")
	require.Zero(t, calls)
	done, err = artifact.Collect(t.Context(), all, time.Now().Add(time.Hour), named)
	require.NoError(t, err)
	require.Equal(t, artifact.Collected{Objects: 620 - len(rows)}, done)
	require.Equal(t, 2, calls)
	require.ElementsMatch(t, slices.Collect(maps.Keys(rows)), keys(t, all))
}

func TestCollectDeletesNothingWithoutTheDatabase(t *testing.T) {
	t.Parallel()
	all, down := store(t), errors.New("the database is down")
	_, err := all.Put(t.Context(), "a", strings.NewReader("x"), 1)
	require.NoError(t, err)
	_, err = artifact.Collect(t.Context(), all, time.Now().Add(time.Hour),
		func(context.Context, []string) (map[string]bool, error) { return nil, down })
	require.ErrorIs(t, err, down)
	require.Equal(t, []string{"a"}, keys(t, all))
}
