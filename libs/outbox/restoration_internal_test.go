package outbox

import (
	"context"
	"log/slog"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/postgres"
	"lockstep.internal/tools/testkit/natstest"
	"lockstep.internal/tools/testkit/pgtest"
)

// newRestoredSession returns a session to which the stream FACTS has acknowledged 5 messages. The stream has 2: it was
// restored from an older copy. restored counts calls of [Config.Restored].
func newRestoredSession(t *testing.T) (s *session, restored *int) {
	t.Helper()
	pool, err := postgres.Connect(t.Context(), postgres.Config{URL: pgtest.Database(t)}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	migrations, err := Migrations()
	require.NoError(t, err)
	require.NoError(t, postgres.Migrate(t.Context(), pool, slog.New(slog.DiscardHandler), migrations))
	server := natstest.Server(t)
	js := natstest.JetStream(t, server)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "FACTS", Subjects: []string{"fact.>"}, AllowDirect: true,
	})
	require.NoError(t, err)
	for range 2 {
		_, err := js.Publish(t.Context(), "fact.x", nil)
		require.NoError(t, err)
	}
	calls := 0
	p, err := New(Config{
		Pool: pool, Conn: js.Conn(), Logger: slog.New(slog.DiscardHandler),
		Restored: func(context.Context, pgx.Tx, Restoration) error {
			calls++
			return nil
		},
	})
	require.NoError(t, err)
	held, err := p.cfg.lock().Acquire(t.Context(), pool)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, held.Release(context.Background())) })
	s = newSession(p, js, held)
	s.streams = map[string]uint64{"FACTS": 5}
	t.Cleanup(func() { s.stopChecks() })
	return s, &calls
}

func TestRestorationThatAnAcknowledgementShowsBeforeTheCheckIsHandledOnce(t *testing.T) {
	t.Parallel()
	s, restored := newRestoredSession(t)
	s.checkStreams(t.Context())
	end := <-s.ends
	require.Equal(t, uint64(2), end.last)
	s.ends <- end

	for i := range 4 {
		require.NoError(t, postgres.InTx(t.Context(), s.cfg.Pool, func(tx pgx.Tx) error {
			return Insert(t.Context(), tx, &nats.Msg{Subject: "fact." + strconv.Itoa(i)})
		}))
	}
	rows, _, err := s.readRows(t.Context())
	require.NoError(t, err)
	_, err = s.publishRows(t.Context(), rows)
	require.NoError(t, err)
	require.Equal(t, 1, *restored)
	require.NoError(t, s.finishChecks(t.Context()))
	require.Equal(t, 1, *restored)
	require.Equal(t, uint64(6), s.streams["FACTS"])
}

func TestRestorationThatTheCheckShowsBeforeASlowAcknowledgementIsHandledOnce(t *testing.T) {
	t.Parallel()
	s, restored := newRestoredSession(t)
	future, err := s.js.PublishMsgAsync(&nats.Msg{Subject: "fact.slow"})
	require.NoError(t, err)
	<-s.js.PublishAsyncComplete()
	s.slow["fact.slow"] = sent{
		row: row{id: 1, subject: "fact.slow"}, future: future, before: map[string]uint64{"FACTS": 5},
	}
	s.checkStreams(t.Context())
	require.NoError(t, s.awaitChecks(t.Context()))
	require.Equal(t, 1, *restored)
	_, err = s.publishRows(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, s.slow)
	require.Equal(t, 1, *restored)
}
