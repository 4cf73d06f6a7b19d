package tunnel_test

import (
	"bytes"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/tunnel"
)

const (
	window = 512 << 10
	// most is the time within which a test must end.
	most = time.Minute
)

// fill sends a window of data on a stream, and waits until the budget has counted it.
func fill(t *testing.T, b *tunnel.Budget, near *tunnel.Stream) {
	t.Helper()
	before := b.Used()
	_, err := near.Write(make([]byte, window))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return b.Used() >= before+window }, most, time.Millisecond)
}

func TestStreamThatWaitsLongestIsResetAboveTheBudget(t *testing.T) {
	t.Parallel()
	var resets atomic.Int64
	budget := tunnel.NewBudget(4*window, func() { resets.Add(1) })
	e := newSessionPair(t, tunnel.Config{Budget: budget})
	type ends struct{ near, far *tunnel.Stream }
	var stalled []ends
	for range 4 {
		near, far := e.stream(t)
		fill(t, budget, near)
		stalled = append(stalled, ends{near, far})
	}
	// The reader of the first one moves on: the second one waits longest from now on.
	_, err := io.ReadFull(stalled[0].far, make([]byte, window/2))
	require.NoError(t, err)
	require.Zero(t, resets.Load())

	// Somebody who reads is served meanwhile.
	near, far := e.stream(t)
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	go func() {
		_, _ = near.Write(sent)
		_ = near.CloseWrite()
	}()
	received, err := io.ReadAll(far)
	require.NoError(t, err)
	require.True(t, bytes.Equal(sent, received))
	require.NoError(t, far.Close())

	require.EqualValues(t, 1, resets.Load())
	for i, s := range stalled {
		if i != 1 {
			require.NoError(t, s.far.Err())
			continue
		}
		var reset *tunnel.ResetError
		require.ErrorAs(t, s.far.Err(), &reset)
		_, err := s.far.Read(make([]byte, 1))
		require.ErrorAs(t, err, &reset, "what was not read is dropped")
		_, err = s.near.Read(make([]byte, 1))
		require.ErrorContains(t, err, "too many bytes of all streams are unread")
	}
	require.LessOrEqual(t, budget.Used(), 4*window)
}

func TestBudgetIsFreeAfterStreamsEnd(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, e *sessionPair, near, far *tunnel.Stream){
		"read": func(t *testing.T, _ *sessionPair, _, far *tunnel.Stream) {
			_, err := io.ReadFull(far, make([]byte, window))
			require.NoError(t, err)
		},
		"read by WriteTo": func(t *testing.T, _ *sessionPair, near, far *tunnel.Stream) {
			require.NoError(t, near.CloseWrite())
			n, err := io.Copy(io.Discard, far)
			require.NoError(t, err)
			require.EqualValues(t, window, n)
		},
		"closed": func(t *testing.T, _ *sessionPair, _, far *tunnel.Stream) { require.NoError(t, far.Close()) },
		"reset":  func(_ *testing.T, _ *sessionPair, _, far *tunnel.Stream) { far.Reset(tunnel.Cancelled, "") },
		"reset by the other side": func(t *testing.T, _ *sessionPair, near, far *tunnel.Stream) {
			near.Reset(tunnel.Cancelled, "")
			require.Eventually(t, func() bool { return far.Err() != nil }, most, time.Millisecond)
			far.Reset(tunnel.Cancelled, "")
		},
		"lost": func(t *testing.T, e *sessionPair, _, far *tunnel.Stream) {
			require.NoError(t, e.accepted.Close())
			require.NoError(t, far.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			budget := tunnel.NewBudget(0, nil)
			e := newSessionPair(t, tunnel.Config{Budget: budget})
			near, far := e.stream(t)
			fill(t, budget, near)
			end(t, e, near, far)
			require.Zero(t, budget.Used())
		})
	}
}
