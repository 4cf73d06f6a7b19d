package natsconn

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

func TestRepeatedErrorIsLoggedOnceAMinuteAndCounted(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	c := &Conn{logger: slog.New(slog.NewTextHandler(&log, nil)), logged: map[string]time.Time{}}
	for range 3 {
		c.onAsyncError(nil, nats.ErrBadHeaderMsg)
	}
	c.onAsyncError(nil, errors.New("another error"))
	require.Equal(t, 1, strings.Count(log.String(), nats.ErrBadHeaderMsg.Error()))
	require.Equal(t, 1, strings.Count(log.String(), "another error"))
	require.Equal(t, uint64(4), c.errors)

	now := time.Now().Add(errorLogInterval)
	require.True(t, c.shouldLog(nats.ErrBadHeaderMsg.Error(), now))
	require.False(t, c.shouldLog(nats.ErrBadHeaderMsg.Error(), now))
}
