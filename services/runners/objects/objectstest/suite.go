package objectstest

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/objects"
)

// Sizes of content. Long content does not fit into one part of any store.
const (
	part  = 8 << 20
	long  = 20 << 20
	short = 1000
)

// Empty returns the configuration of a store without objects. It is called once per test.
type Empty func(t *testing.T) objects.Config

// Run runs the tests.
func Run(t *testing.T, empty Empty) {
	t.Helper()
	for name, test := range map[string]func(*fixture){
		"StoredContentIsRead":                    (*fixture).storedContentIsRead,
		"ContentIsReadAtAnyOffset":               (*fixture).contentIsReadAtAnyOffset,
		"MissingObjectIsNotFound":                (*fixture).missingObjectIsNotFound,
		"TooLargeContentLeavesNothing":           (*fixture).tooLargeContentLeavesNothing,
		"FailedReaderLeavesNothing":              (*fixture).failedReaderLeavesNothing,
		"CanceledPutLeavesNothing":               (*fixture).canceledPutLeavesNothing,
		"CanceledContextEndsEachOperation":       (*fixture).canceledContextEndsEachOperation,
		"ConcurrentPutsOfOneKeyAreWhole":         (*fixture).concurrentPutsOfOneKeyAreWhole,
		"KilledProcessLeavesNoHalfObject":        (*fixture).killedProcessLeavesNoHalfObject,
		"SweepSparesRunningPutsAndObjects":       (*fixture).sweepSparesRunningPutsAndObjects,
		"LongContentNeedsLittleMemory":           (*fixture).longContentNeedsLittleMemory,
		"ListHasTheObjectsBeforeATime":           (*fixture).listHasTheObjectsBeforeATime,
		"InvalidKeyIsRefusedByEachOperation":     (*fixture).invalidKeyIsRefusedByEachOperation,
		"UncommonKeysAreStored":                  (*fixture).uncommonKeysAreStored,
		"ReplicasShareTheStore":                  (*fixture).replicasShareTheStore,
		"UsableStorePassesTheCheckAndStaysEmpty": (*fixture).usableStorePassesTheCheckAndStaysEmpty,
	} {
		t.Run(name, func(t *testing.T) {
			cfg := empty(t)
			require.Empty(t, cfg.Validate())
			f := &fixture{T: t, cfg: cfg}
			f.store = f.open()
			test(f)
		})
	}
}

// fixture is an empty store.
type fixture struct {
	*testing.T

	cfg   objects.Config
	store objects.Store
}

// open opens the store once more, as another replica does.
func (f *fixture) open() objects.Store {
	f.Helper()
	store, err := objects.Open(f.cfg)
	require.NoError(f, err)
	f.Cleanup(func() { require.NoError(f, store.Close()) })
	return store
}

// put stores content with a seed.
func (f *fixture) put(key string, size int64, seed byte) objects.Info {
	f.Helper()
	info, err := f.store.Put(f.Context(), key, newContent(size, seed), size)
	require.NoError(f, err)
	return info
}

// read returns the content of an object.
func (f *fixture) read(key string) []byte {
	f.Helper()
	reader, size, err := f.store.Open(f.Context(), key)
	require.NoError(f, err)
	content, err := io.ReadAll(reader)
	require.NoError(f, errors.Join(err, reader.Close()))
	require.Equal(f, size, int64(len(content)))
	return content
}

// keys returns the keys of all objects.
func (f *fixture) keys() []string {
	f.Helper()
	keys := []string{}
	for entry, err := range f.store.List(f.Context(), time.Now().Add(time.Hour)) {
		require.NoError(f, err)
		keys = append(keys, entry.Key)
	}
	return keys
}

// sweep removes all that interrupted Puts have left.
func (f *fixture) sweep() int {
	f.Helper()
	removed, err := f.store.Sweep(f.Context(), time.Now().Add(time.Hour))
	require.NoError(f, err)
	return removed
}

// requireNothing checks that there are no objects and no parts of objects.
func (f *fixture) requireNothing() {
	f.Helper()
	require.Empty(f, f.keys())
	require.Zero(f, f.sweep())
}
