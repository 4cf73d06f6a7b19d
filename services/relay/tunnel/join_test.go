package tunnel_test

import (
	"bytes"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/tunnel"
)

// join joins streams of a session with targets.
func join(t *testing.T, e *ends) (near *tunnel.Stream, target io.ReadWriteCloser, joined chan error) {
	t.Helper()
	near, far := e.stream(t)
	targets, accepted := pair(t)
	joined = make(chan error, 1)
	go func() {
		_, _, err := tunnel.Join(far, targets)
		joined <- err
	}()
	return near, accepted, joined
}

// numbered are bytes of which no stretch looks like another.
func numbered(n int) []byte {
	out := make([]byte, n)
	for i := range out {
		out[i] = byte(i >> 8 * (i & 3))
	}
	return out
}

// A target that stops reading in the middle of small frames stops its writer alone, and has all of them in the end.
func TestATargetThatStopsReadingHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	e := connect(t, tunnel.Config{Window: 64 << 10})
	stuck, slow, joined := join(t, e)
	sent := numbered(32 << 20)
	require.NoError(t, stuck.SetWriteDeadline(time.Now().Add(2*time.Second)))
	at := 0
	for at < len(sent) {
		n, err := stuck.Write(sent[at:min(at+1000, len(sent))])
		at += n
		if err != nil {
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			break
		}
	}
	require.Less(t, at, len(sent), "the target's buffers and the window are full")
	near, target, others := join(t, e)
	go func() {
		_, _ = io.Copy(target, target)
		_ = target.Close()
	}()
	for range 500 {
		_, err := near.Write([]byte("ping"))
		require.NoError(t, err)
		_, err = io.ReadFull(near, make([]byte, 4))
		require.NoError(t, err)
	}
	require.NoError(t, near.CloseWrite())
	require.NoError(t, <-others)
	require.NoError(t, stuck.SetWriteDeadline(time.Time{}))
	go func() {
		for ; at < len(sent); at += 1000 {
			if _, err := stuck.Write(sent[at:min(at+1000, len(sent))]); err != nil {
				return
			}
		}
		_ = stuck.CloseWrite()
	}()
	got, err := io.ReadAll(slow)
	require.NoError(t, err)
	require.True(t, bytes.Equal(sent, got))
	require.NoError(t, slow.Close())
	require.NoError(t, <-joined)
}

// What is sent in one go with its end reaches the target whole, and then the end does.
func TestAnEndRightBehindWhatIsSentIsNotEarlier(t *testing.T) {
	t.Parallel()
	e := connect(t, tunnel.Config{})
	for range 200 {
		near, target, joined := join(t, e)
		_, err := near.Write([]byte("question"))
		require.NoError(t, err)
		require.NoError(t, near.CloseWrite())
		got, err := io.ReadAll(target)
		require.NoError(t, err)
		require.Equal(t, "question", string(got))
		_, err = target.Write([]byte("answer"))
		require.NoError(t, err)
		require.NoError(t, target.Close())
		got, err = io.ReadAll(near)
		require.NoError(t, err)
		require.Equal(t, "answer", string(got))
		require.NoError(t, <-joined)
	}
}

func TestAStreamMayBeGivenUpInTheMiddleOfSmallFrames(t *testing.T) {
	t.Parallel()
	e := connect(t, tunnel.Config{})
	for i := range 100 {
		near, target, joined := join(t, e)
		written := make(chan struct{})
		go func() {
			defer close(written)
			for {
				if _, err := near.Write([]byte("on and on")); err != nil {
					return
				}
			}
		}()
		_, err := io.ReadFull(target, make([]byte, 1+100*i))
		require.NoError(t, err)
		near.Reset(tunnel.Cancelled, "enough")
		<-written
		_, err = io.Copy(io.Discard, target)
		require.ErrorContains(t, err, "reset", "it is no end")
		require.Error(t, <-joined)
	}
}
