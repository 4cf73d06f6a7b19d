package forward

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// tokenOf returns the token of a request with JSON.
func tokenOf(h *Handler, reader io.Reader) (*proxiedRequest, string, error) {
	r := httptest.NewRequest(http.MethodPost, "/api/v4/jobs/request", reader)
	r.Header.Set("Content-Type", "application/json")
	p := &proxiedRequest{body: h.newBody(httptest.NewRecorder(), r)}
	token, err := h.token(r, p)
	return p, token, err
}

// TestStartsOfBodiesAreLimited is about clients that send bodies slowly.
func TestStartsOfBodiesAreLimited(t *testing.T) {
	t.Parallel()
	h := NewHandler(Config{Logger: slog.New(slog.DiscardHandler)})
	for range maxStarts {
		h.starts <- struct{}{}
	}
	p, _, err := tokenOf(h, strings.NewReader(`{"token":"a"}`))
	require.Equal(t, errcode.Unavailable, fault.CodeOf(err))
	require.Equal(t, limited, p.result)
	<-h.starts
	for range 2 { // a start takes a place only while it is read
		_, token, err := tokenOf(h, strings.NewReader(`{"token":"a"}`))
		require.NoError(t, err)
		require.Equal(t, "a", token)
	}
}

// late is a body that does not arrive in time.
type late struct{}

func (late) Read([]byte) (int, error) { return 0, os.ErrDeadlineExceeded }

func TestStartThatDoesNotArriveIsRefused(t *testing.T) {
	t.Parallel()
	h := NewHandler(Config{Logger: slog.New(slog.DiscardHandler)})
	p, _, err := tokenOf(h, late{})
	require.Equal(t, errcode.DeadlineExceeded, fault.CodeOf(err))
	require.Equal(t, canceled, p.result)
	require.Empty(t, h.starts)
}
