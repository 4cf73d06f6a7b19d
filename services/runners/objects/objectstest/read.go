package objectstest

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/objects"
)

func (f *fixture) storedContentIsRead() {
	for _, size := range []int64{0, 1, part - 1, part, part + 1, 2 * part, long} {
		key := fmt.Sprintf("jobs/%d", size)
		want := contentOf(size, 1)
		require.Equal(f, objects.Info{Size: size, SHA256: hashOf(want)}, f.put(key, size, 1))
		require.True(f, bytes.Equal(want, f.read(key)), "%d bytes", size)
	}
	require.Equal(f, hashOf(contentOf(short, 2)), f.put("jobs/1", short, 2).SHA256)
	require.True(f, bytes.Equal(contentOf(short, 2), f.read("jobs/1")), "the new content of the key")
	require.Zero(f, f.sweep())
}

func (f *fixture) contentIsReadAtAnyOffset() {
	want := contentOf(short, 1)
	f.put("a", short, 1)
	reader, size, err := f.store.OpenAt(f.Context(), "a")
	require.NoError(f, err)
	defer func() { require.NoError(f, reader.Close()) }()
	require.EqualValues(f, short, size)
	for _, at := range []struct {
		offset int64
		length int
		end    error
	}{
		{0, short, nil},
		{0, 1, nil},
		{short - 1, 1, nil},
		{10, 20, nil},
		{short - 5, 10, io.EOF},
		{short, 1, io.EOF},
		{short + 5, 1, io.EOF},
		{0, 2 * short, io.EOF},
	} {
		p := make([]byte, at.length)
		n, err := reader.ReadAt(p, at.offset)
		require.Equal(f, at.end, err, "%+v", at)
		from := min(at.offset, short)
		require.Equal(f, want[from:min(from+int64(at.length), short)], p[:n], "%+v", at)
	}
	_, err = reader.ReadAt(make([]byte, 1), -1)
	require.Error(f, err)
	require.NotErrorIs(f, err, io.EOF)
}

func (f *fixture) missingObjectIsNotFound() {
	f.put("a", short, 1)
	require.NoError(f, f.store.Delete(f.Context(), "a"))
	for _, key := range []string{"a", "b", "a/b"} {
		_, _, err := f.store.Open(f.Context(), key)
		require.ErrorIs(f, err, objects.ErrNotFound)
		require.Equal(f, errcode.NotFound, fault.From(err).Code)
		_, _, err = f.store.OpenAt(f.Context(), key)
		require.ErrorIs(f, err, objects.ErrNotFound)
		require.NoError(f, f.store.Delete(f.Context(), key))
	}
	f.requireNothing()
}

func (f *fixture) listHasTheObjectsBeforeATime() {
	f.requireNothing()
	want := []string{"a", "b/c", "b/d/e.zip", "z"}
	for i, key := range want {
		f.put(key, int64(i), 1)
	}
	entries := map[string]objects.Entry{}
	for entry, err := range f.store.List(f.Context(), time.Now().Add(time.Hour)) {
		require.NoError(f, err)
		entries[entry.Key] = entry
		require.WithinDuration(f, time.Now(), entry.Modified, time.Hour)
	}
	require.Len(f, entries, len(want))
	for i, key := range want {
		require.EqualValues(f, i, entries[key].Size)
	}
	listed := func(before time.Time) (keys []string) {
		for entry, err := range f.store.List(f.Context(), before) {
			require.NoError(f, err)
			keys = append(keys, entry.Key)
		}
		return keys
	}
	require.Empty(f, listed(time.Now().Add(-time.Hour)))
	modified := entries["a"].Modified
	require.NotContains(f, listed(modified), "a")
	require.Contains(f, listed(modified.Add(1)), "a")
	for _, err := range f.store.List(f.Context(), time.Now().Add(time.Hour)) {
		require.NoError(f, err)
		break // a caller may stop early
	}
}

// invalidKeys returns keys that no store may use.
func invalidKeys() []string {
	return []string{
		"", ".", "..", "/", "/a", "a/", "a//b", "../a", "a/../b", "a/./b", "./a", "a/..", ".put-1", "a/.put-1", "A", "a~b",
		`a\b`, "a b", "a\x00b", "a\nb", "ü", "a%2fb", "-a", strings.Repeat("a", 201), strings.Repeat("a/", 100) + "a",
	}
}

func (f *fixture) invalidKeyIsRefusedByEachOperation() {
	for _, key := range invalidKeys() {
		_, err := f.store.Put(f.Context(), key, newContent(short, 1), short)
		require.ErrorContains(f, err, "object key", "%q", key)
		_, _, err = f.store.Open(f.Context(), key)
		require.ErrorContains(f, err, "object key", "%q", key)
		_, _, err = f.store.OpenAt(f.Context(), key)
		require.ErrorContains(f, err, "object key", "%q", key)
		require.ErrorContains(f, f.store.Delete(f.Context(), key), "object key", "%q", key)
		_, err = f.store.URL(f.Context(), key, "a.zip", time.Minute)
		require.ErrorContains(f, err, "object key", "%q", key)
	}
	f.requireNothing()
}

func (f *fixture) uncommonKeysAreStored() {
	keys := []string{strings.Repeat("a", 200), strings.Repeat("b/", 99) + "b", "0", "a-_.", "a..b", "a", "ab"}
	for i, key := range keys {
		f.put(key, short, byte(i))
	}
	for i, key := range keys {
		require.Equal(f, contentOf(short, byte(i)), f.read(key), key)
	}
	slices.Sort(keys)
	got := f.keys()
	slices.Sort(got)
	require.Equal(f, keys, got)
}

func (f *fixture) replicasShareTheStore() {
	other := &fixture{T: f.T, cfg: f.cfg, store: f.open()}
	f.put("a", short, 1)
	require.Equal(f, contentOf(short, 1), other.read("a"))
	require.NoError(f, other.store.Delete(f.Context(), "a"))
	f.requireNothing()
}

func (f *fixture) usableStorePassesTheCheckAndStaysEmpty() {
	require.NoError(f, f.store.Check(f.Context()))
	f.requireNothing()
}
