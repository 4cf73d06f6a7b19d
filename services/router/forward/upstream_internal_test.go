package forward

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptrace"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sony/gobreaker/v2"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/cellmap"
	"lockstep.internal/libs/topology"
)

var errDown = errors.New("connection refused")

// script is a cell whose responses a test decides. It connects at once, unless it is down.
type script struct {
	down bool
	// takes is how long a response takes, and fails its error.
	takes time.Duration
	fails error
}

func (s *script) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.down {
		return nil, errDown
	}
	httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{})
	select {
	case <-time.After(s.takes):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	if s.fails != nil {
		return nil, s.fails
	}
	return &http.Response{StatusCode: http.StatusServiceUnavailable, Body: http.NoBody}, nil
}

// cellOf returns a cell whose breaker opens for 10 s after 3 failures.
func cellOf(t *testing.T, s *script) (u *upstream, states func() []gobreaker.State) {
	t.Helper()
	var changes []gobreaker.State
	u, err := newUpstream(cellmap.Cell{Name: "one", URL: "http://one"},
		Config{MaxRequestsPerCell: 10, Breaker: BreakerConfig{Failures: 3, Open: 10 * time.Second}}, s,
		func(_ topology.Cell, to gobreaker.State) { changes = append(changes, to) })
	require.NoError(t, err)
	return u, func() []gobreaker.State { return changes }
}

func try(ctx context.Context, u *upstream, clientFailed bool) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://one", http.NoBody)
	if err != nil {
		return err
	}
	response, err := u.roundTrip(r, func() bool { return clientFailed })
	if err != nil {
		return err
	}
	return response.Body.Close()
}

func TestBreakerOpensAfterFailuresInARow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &script{}
		u, states := cellOf(t, s)
		for range 2 {
			s.down = true
			require.ErrorIs(t, try(t.Context(), u, false), errDown)
			require.ErrorIs(t, try(t.Context(), u, false), errDown)
			s.down = false
			require.NoError(t, try(t.Context(), u, false), "any response is a success")
		}
		require.Empty(t, states())
		s.down = true
		for range 3 {
			require.ErrorIs(t, try(t.Context(), u, false), errDown)
		}
		require.True(t, u.open())
		s.down = false
		require.ErrorIs(t, try(t.Context(), u, false), gobreaker.ErrOpenState)

		time.Sleep(11 * time.Second) // in the bubble
		s.down = true
		require.ErrorIs(t, try(t.Context(), u, false), errDown, "one request tries")
		require.ErrorIs(t, try(t.Context(), u, false), gobreaker.ErrOpenState)
		time.Sleep(11 * time.Second)
		s.down = false
		require.NoError(t, try(t.Context(), u, false))
		require.NoError(t, try(t.Context(), u, false))
		require.Equal(t, []gobreaker.State{
			gobreaker.StateOpen, gobreaker.StateHalfOpen, gobreaker.StateOpen, gobreaker.StateHalfOpen, gobreaker.StateClosed,
		}, states())
	})
}

// TestWaitingRequestDoesNotBlockTheCell is about a request for a job that tries whether the cell is back.
func TestWaitingRequestDoesNotBlockTheCell(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &script{down: true}
		u, _ := cellOf(t, s)
		for range 3 {
			require.ErrorIs(t, try(t.Context(), u, false), errDown)
		}
		time.Sleep(11 * time.Second)
		s.down, s.takes = false, 10*time.Minute
		waiting := make(chan error, 1)
		go func() { waiting <- try(t.Context(), u, false) }()
		synctest.Wait()
		require.ErrorIs(t, try(t.Context(), u, false), gobreaker.ErrTooManyRequests)
		time.Sleep(aliveAfter)
		synctest.Wait()
		s.takes = 0
		require.NoError(t, try(t.Context(), u, false))
		require.NoError(t, <-waiting)
	})
}

// TestLostWaitingRequestsDoNotOpenTheBreaker is about a replica of a cell that stops: others remain.
func TestLostWaitingRequestsDoNotOpenTheBreaker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &script{takes: time.Minute, fails: errDown}
		u, states := cellOf(t, s)
		lost := make(chan error, 10)
		for range 10 {
			go func() { lost <- try(t.Context(), u, false) }()
		}
		for range 10 {
			require.ErrorIs(t, <-lost, errDown)
		}
		require.Empty(t, states())
	})
}

func TestClientsDoNotOpenTheBreaker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &script{takes: time.Second, fails: errDown}
		u, states := cellOf(t, s)
		for range 10 {
			require.ErrorIs(t, try(t.Context(), u, true), errDown, "its body is not complete")
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			require.ErrorIs(t, try(ctx, u, false), context.Canceled)
		}
		require.Empty(t, states())
	})
}

func TestRequestsOfACellAreLimited(t *testing.T) {
	t.Parallel()
	u, _ := cellOf(t, &script{})
	for range 10 {
		require.True(t, u.acquire())
	}
	require.False(t, u.acquire())
	require.False(t, u.acquire(), "a refused request takes no place")
	u.release()
	require.True(t, u.acquire())
}
