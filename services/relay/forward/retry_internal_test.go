package forward

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/route"
	"lockstep.internal/services/relay/tunnel"
)

func TestErrorsAreClassifiedForRetries(t *testing.T) {
	t.Parallel()
	reset := func(reason tunnel.Reason) error {
		return fmt.Errorf("read the response: %w", &tunnel.ResetError{Reason: reason, Text: "text"})
	}
	aborted := fmt.Errorf("%w: %w", errNoResponse, reset(tunnel.TargetConnectionLost))
	for name, c := range map[string]struct {
		err    error
		reused bool
		want   route.Failure
	}{
		"the relay has no such connection":     {reset(tunnel.NotAccepted), false, route.NotAccepted},
		"the agent has too many streams":       {reset(tunnel.Overloaded), false, route.Overloaded},
		"the agent refused the target":         {reset(tunnel.Refused), true, route.Final},
		"the target cannot be reached":         {reset(tunnel.Unreachable), true, route.Final},
		"the agent cancelled the stream":       {reset(tunnel.Cancelled), true, route.Final},
		"the tunnel was lost":                  {fmt.Errorf("read: %w", tunnel.ErrClosed), false, route.ConnectionLost},
		"the target closed a new stream":       {errNoResponse, false, route.Final},
		"the target closed an idle stream":     {errNoResponse, true, route.ClosedWhileIdle},
		"the target aborted an idle stream":    {aborted, true, route.ClosedWhileIdle},
		"the target sent an invalid response":  {errors.New("malformed HTTP response"), true, route.Final},
		"the response ended in its first line": {io.ErrUnexpectedEOF, true, route.Final},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, failureOf(c.err, c.reused))
		})
	}
}

func TestReplayableRequests(t *testing.T) {
	t.Parallel()
	for method, want := range map[string]bool{
		http.MethodGet: true, http.MethodHead: true, http.MethodOptions: true, http.MethodTrace: true,
		http.MethodPost: false, http.MethodPut: false, http.MethodPatch: false, http.MethodDelete: false,
	} {
		request := &http.Request{Method: method, Header: http.Header{}}
		require.Equal(t, want, isReplayable(request), method)
		request.Header.Set("Upgrade", "websocket")
		require.False(t, isReplayable(request), "%s with an upgrade", method)
	}
}
