package ingest

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRefusedRowsOfAnAgentAreLoggedOnceAMinute(t *testing.T) {
	t.Parallel()
	var logs bytes.Buffer
	p := New(Config{Logger: slog.New(slog.NewTextHandler(&logs, nil))})
	now := time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC)
	report := func(after time.Duration, refused map[int64]int) int {
		logs.Reset()
		p.reportRefused(t.Context(), refused, now.Add(after))
		return bytes.Count(logs.Bytes(), []byte("refused new rows of an agent"))
	}
	require.Equal(t, 1, report(0, map[int64]int{7: 5}))
	require.Equal(t, 1, report(30*time.Second, map[int64]int{7: 1, 8: 1}), "the other agent")
	require.Zero(t, report(59*time.Second, map[int64]int{7: 1, 8: 1}))
	require.Equal(t, 1, report(time.Minute, map[int64]int{7: 1, 8: 1}), "the first agent")
	require.Len(t, p.refusedAt, 2)
	require.Zero(t, report(time.Hour, nil))
	require.Empty(t, p.refusedAt)
}
