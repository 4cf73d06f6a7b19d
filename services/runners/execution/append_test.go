package execution_test

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/services/runners/execution"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/postgres"
	"lockstep.internal/services/runners/trace"
	"lockstep.internal/services/runners/wire"
)

func TestTraceIsMaskedOverTheBordersOfItsParts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ref := f.running(7)
	text := "password swordfish, token " + ref.Token + ", end"
	for offset := 0; offset < len(text); offset += 5 {
		f.append(ref, int64(offset), text[offset:min(offset+5, len(text))])
	}
	_, _, err := f.first.Update(t.Context(), ref, succeeded(text))
	require.NoError(t, err)
	read := f.trace(7)
	require.Equal(t, "password *********, token "+strings.Repeat("*", len(ref.Token))+", end", read)
}

func TestAppendThatDoesNotContinueTheTraceStoresNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ref := f.running(7)
	f.append(ref, 0, "hello")
	for _, offset := range []int64{0, 4, 6, 1 << 40} {
		_, state, err := f.first.AppendTrace(t.Context(), ref, offset, []byte("x"))
		var outOfRange *trace.RangeError
		require.ErrorAs(t, err, &outOfRange)
		require.EqualValues(t, 5, outOfRange.Size)
		require.Equal(t, wire.StatusRunning, state.Status)
	}
	require.Equal(t, "hello", f.trace(7))
}

// TestConcurrentAppendsAreOneAfterTheOther sends all parts several times on two replicas at once, as a runner does
// whose answers are lost.
func TestConcurrentAppendsAreOneAfterTheOther(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ref := f.running(7)
	replicas := []*replica{f.first, f.replica()}
	const text = "abcdefghijklmnopqrstuvwxyz"
	var group sync.WaitGroup
	for i := range 6 {
		group.Go(func() {
			for offset := int64(0); offset < int64(len(text)); {
				end := min(offset+3, int64(len(text)))
				size, _, err := replicas[i%2].AppendTrace(t.Context(), ref, offset, []byte(text[offset:end]))
				if outOfRange, found := errors.AsType[*trace.RangeError](err); found {
					size, err = outOfRange.Size, nil
				}
				if err != nil {
					t.Error(err)
					return
				}
				offset = size
			}
		})
	}
	group.Wait()
	_, _, err := f.first.Update(t.Context(), ref, succeeded(text))
	require.NoError(t, err)
	require.Equal(t, text, f.trace(7))
	require.Equal(t, job.Success, f.job(7).State)
}

func TestTraceOverItsLimitEndsWithOneNoteAndItsJobContinues(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ref := f.running(7)
	f.append(ref, 0, strings.Repeat("a", limit-10))
	for range 3 {
		_, state, err := f.first.AppendTrace(t.Context(), ref, limit-10, []byte(strings.Repeat("b", 20)))
		require.ErrorIs(t, err, trace.ErrTooLarge)
		require.Equal(t, wire.StatusRunning, state.Status)
	}
	const note = "\nThe trace exceeds its limit of 1000 bytes: the rest of it is not stored.\n"
	require.Equal(t, strings.Repeat("a", limit-10)+strings.Repeat("b", 10)+note, f.trace(7))
	require.Equal(t, job.Running, f.job(7).State)
	_, state, err := f.first.Update(t.Context(), ref, report(1, limit+10))
	require.NoError(t, err)
	require.Equal(t, wire.StatusSuccess, state.Status)
}

func TestTraceWithoutAnyPartIsEmpty(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ref := f.running(7)
	require.Empty(t, f.trace(7))
	_, _, err := f.first.Update(t.Context(), ref, succeeded(""))
	require.NoError(t, err)
	require.Empty(t, f.trace(7))
}

func TestAnyPartOfATraceIsRead(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ref := f.running(7)
	const text = "abcdefghij"
	for i, piece := range []string{"abc", "d", "efgh", "ij"} {
		f.append(ref, int64([]int{0, 3, 4, 8}[i]), piece)
	}
	reader := postgres.Traces{Pool: f.pool}
	for offset := range int64(12) {
		for size := range 12 {
			part, err := reader.ReadTrace(t.Context(), 7, offset, size)
			require.NoError(t, err)
			from := min(offset, int64(len(text)))
			require.Equal(t, text[from:min(from+int64(size), int64(len(text)))], string(part.Data))
			require.EqualValues(t, len(text), part.Size)
		}
	}
}

const appendTo = "RUNNERS_TEST_APPEND_TO"

// TestKilledProcessLeavesNoHoleInATrace kills a process that appends to a trace.
func TestKilledProcessLeavesNoHoleInATrace(t *testing.T) {
	t.Parallel()
	if url := os.Getenv(appendTo); url != "" {
		appendForever(t, url)
		return
	}
	f := newFixture(t)
	f.running(7)
	for range 3 {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		child.Env = append(os.Environ(), appendTo+"="+f.pool.Config().ConnString())
		out, err := child.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, child.Start())
		lines := bufio.NewScanner(out)
		for range 20 {
			require.True(t, lines.Scan(), "the process ended")
		}
		require.NoError(t, child.Process.Kill())
		_ = child.Wait() // it was killed
		// Whoever locks the trace waits for the end of the transaction.
		require.NoError(t, f.first.store.UpdateTrace(t.Context(), 7, func(s execution.Snapshot) (execution.Decision, error) {
			require.EqualValues(t, s.Trace.Size, f.count(`SELECT sum(length(data)) FROM trace_parts`))
			return execution.Decision{}, nil
		}))
		require.NotEmpty(t, f.trace(7))
	}
}

// appendForever writes a line for each part until it is killed.
func appendForever(t *testing.T, url string) {
	pool, err := libpostgres.Connect(context.Background(), libpostgres.Config{URL: url}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer pool.Close()
	store, mask := postgres.Executions{Pool: pool}, trace.NewMask(nil)
	for {
		require.NoError(t, store.UpdateTrace(context.Background(), 7, func(s execution.Snapshot) (execution.Decision, error) {
			next, write, err := s.Trace.Append(mask, s.Trace.Size, []byte("0123456789"), 1<<30)
			return execution.Decision{Trace: &next, Writes: []trace.Write{write}}, err
		}))
		_, err = os.Stdout.WriteString("appended\n")
		require.NoError(t, err)
	}
}
