package objectstest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/objects"
)

// maxMemory is what Put may allocate for any content, in bytes.
const maxMemory = 32 << 20

func (f *fixture) tooLargeContentLeavesNothing() {
	for _, size := range []int64{1, short, part, part + 1, long} {
		_, err := f.store.Put(f.Context(), "a", newContent(size, 1), size-1)
		require.ErrorIs(f, err, objects.ErrTooLarge, "%d bytes", size)
		require.Equal(f, errcode.PayloadTooLarge, fault.From(err).Code)
		f.requireNothing()
	}
	f.put("a", short, 1)
	_, err := f.store.Put(f.Context(), "a", newContent(long, 2), long-1)
	require.ErrorIs(f, err, objects.ErrTooLarge)
	require.Equal(f, contentOf(short, 1), f.read("a"), "the object that was there")
}

func (f *fixture) failedReaderLeavesNothing() {
	broken := errors.New("the connection broke")
	for _, size := range []int64{0, short, part, long} {
		for _, cause := range []error{broken, io.ErrUnexpectedEOF, fmt.Errorf("broken: %w", io.EOF)} {
			content := io.MultiReader(newContent(size, 1), &failing{err: cause})
			_, err := f.store.Put(f.Context(), "a", content, long+1)
			var failed *objects.ContentError
			require.ErrorAs(f, err, &failed, "%d bytes", size)
			require.ErrorIs(f, err, cause)
			f.requireNothing()
		}
	}
}

// failing is a reader that fails.
type failing struct{ err error }

func (r *failing) Read([]byte) (int, error) { return 0, r.err }

// hook is a reader that calls a function when it is read, and ends.
type hook func()

func (h hook) Read([]byte) (int, error) {
	h()
	return 0, io.EOF
}

func (f *fixture) canceledPutLeavesNothing() {
	for _, size := range []int64{0, short, long} {
		ctx, cancel := context.WithCancel(f.Context())
		content := io.MultiReader(newContent(size, 1), hook(cancel), newContent(long, 2))
		_, err := f.store.Put(ctx, "a", content, 10*long)
		require.ErrorIs(f, err, context.Canceled, "%d bytes", size)
		f.requireNothing()
	}
}

func (f *fixture) canceledContextEndsEachOperation() {
	f.put("a", short, 1)
	ctx, cancel := context.WithCancel(f.Context())
	cancel()
	_, err := f.store.Put(ctx, "b", newContent(short, 1), short)
	require.ErrorIs(f, err, context.Canceled)
	_, _, err = f.store.Open(ctx, "a")
	require.ErrorIs(f, err, context.Canceled)
	_, _, err = f.store.OpenAt(ctx, "a")
	require.ErrorIs(f, err, context.Canceled)
	require.ErrorIs(f, f.store.Delete(ctx, "a"), context.Canceled)
	_, err = f.store.Sweep(ctx, time.Now())
	require.ErrorIs(f, err, context.Canceled)
	var errs []error
	for _, err := range f.store.List(ctx, time.Now().Add(time.Hour)) {
		errs = append(errs, err)
	}
	require.Len(f, errs, 1)
	require.ErrorIs(f, errs[0], context.Canceled)
	require.Equal(f, []string{"a"}, f.keys())
}

func (f *fixture) concurrentPutsOfOneKeyAreWhole() {
	const puts, size = 4, part + 1
	whole := map[string]bool{}
	for seed := range byte(puts) {
		whole[hashOf(contentOf(size, seed))] = true
	}
	f.put("a", size, 0)
	var running sync.WaitGroup
	ended := make(chan struct{})
	errs := make([]error, puts)
	for seed := range byte(puts) {
		running.Go(func() {
			_, errs[seed] = f.store.Put(f.Context(), "a", newContent(size, seed), size)
		})
	}
	go func() {
		running.Wait()
		close(ended)
	}()
	for reading := true; reading; {
		select {
		case <-ended:
			reading = false
		default:
		}
		require.True(f, whole[hashOf(f.read("a"))], "not the content of one Put")
	}
	require.NoError(f, errors.Join(errs...))
	require.Equal(f, []string{"a"}, f.keys())
	require.Zero(f, f.sweep())
}

func (f *fixture) killedProcessLeavesNoHalfObject() {
	killWhilePutting(f.T, f.cfg, "a", long)
	require.Empty(f, f.keys())
	_, _, err := f.store.Open(f.Context(), "a")
	require.ErrorIs(f, err, objects.ErrNotFound)
	removed, err := f.store.Sweep(f.Context(), time.Now().Add(-24*time.Hour))
	require.NoError(f, err)
	require.Zero(f, removed, "it may be a Put of another process")
	require.Equal(f, 1, f.sweep())
	require.Zero(f, f.sweep())

	f.put("a", short, 1)
	killWhilePutting(f.T, f.cfg, "a", long)
	require.Equal(f, contentOf(short, 1), f.read("a"), "the object that was there")
	f.put("a", long, 2)
	require.Equal(f, hashOf(contentOf(long, 2)), hashOf(f.read("a")))
}

func (f *fixture) sweepSparesRunningPutsAndObjects() {
	f.put("a", long, 1)
	content := io.MultiReader(newContent(long, 2), hook(func() {
		removed, err := f.store.Sweep(f.Context(), time.Now().Add(-24*time.Hour))
		require.NoError(f, err)
		require.Zero(f, removed)
	}), newContent(long, 3))
	_, err := f.store.Put(f.Context(), "b", content, 2*long)
	require.NoError(f, err)
	require.Zero(f, f.sweep())
	require.ElementsMatch(f, []string{"a", "b"}, f.keys())
	want := append(contentOf(long, 2), contentOf(long, 3)...)
	require.Equal(f, hashOf(want), hashOf(f.read("b")))
}

func (f *fixture) longContentNeedsLittleMemory() {
	const size = 64 << 20
	got := putInChild(f.T, f.cfg, "a", size)
	require.Less(f, got.Allocated, uint64(maxMemory))
	require.Equal(f, objects.Info{Size: size, SHA256: hashOf(contentOf(size, 1))}, got.Info)
	f.Logf("%d MiB were stored with %d KiB of memory", size>>20, got.Allocated>>10)
}
