package audit_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"lockstep.internal/services/relay/audit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What was stored without an answer, as the relay ended, is the same batch when it is published once more: it counts once.
func TestABatchKeepsItsID(t *testing.T) {
	t.Parallel()
	var ids []string
	ctx, end := context.WithCancel(t.Context())
	log := audit.NewLog(audit.Config{Logger: slog.New(slog.DiscardHandler), Publish: func(_ context.Context, b audit.Batch) error {
		ids = append(ids, b.ID)
		require.Len(t, b.Records, 1)
		if len(ids) == 1 {
			end()
			return errors.New("no answer")
		}
		return nil
	}})
	require.NoError(t, log.Reserve(t.Context(), 1))
	log.Add(audit.Record{AgentID: 7, RequestID: "a"})
	require.Equal(t, 1, log.Waiting())
	require.NoError(t, log.Run(ctx, t.Context()))
	require.Len(t, ids, 2)
	require.Equal(t, ids[0], ids[1])
	require.Zero(t, log.Waiting())
}
