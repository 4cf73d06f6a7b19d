package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestShortRunIsCorrectAndLiesAreFound runs a system under load and faults for a moment. Then it falsifies the
// recording in every way that the judgement must notice. The folder of a failed run is kept.
func TestShortRunIsCorrectAndLiesAreFound(t *testing.T) {
	opts := Options{Seed: 7, Duration: 30 * time.Second, Out: t.Output()}
	require.NoError(t, opts.complete(t.Context()))
	t.Cleanup(func() {
		if !t.Failed() {
			require.NoError(t, os.RemoveAll(opts.Dir))
		}
	})
	t.Logf("the recording and the logs are in %s", opts.Dir)
	require.NoError(t, RunLoad(t.Context(), opts))
	require.NoError(t, command(t.Context(), []string{"--judge", opts.Dir}, t.Output()))
	recording, err := ReadRecording(filepath.Join(opts.Dir, recordingFile))
	require.NoError(t, err)
	require.NotEmpty(t, recording.Faults)
	requireLiesFound(t, recording)
}
