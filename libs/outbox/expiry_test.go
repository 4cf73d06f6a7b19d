package outbox_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/outbox"
	"lockstep.internal/libs/postgres"
)

// insert has a message of its own published.
func (b *fixture) insert(m *nats.Msg) {
	b.t.Helper()
	require.NoError(
		b.t, postgres.InTx(b.t.Context(), b.pool, func(tx pgx.Tx) error { return outbox.Insert(b.t.Context(), tx, m) }),
	)
}

// TestSubjectWithAnExpiredLastMessageIsPublishedTo has messages go away by themselves: the sequence
// that a publisher remembers, or finds, is no longer the subject's.
func TestSubjectWithAnExpiredLastMessageIsPublishedTo(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	_, err := b.js.UpdateStream(
		t.Context(),
		jetstream.StreamConfig{
			Name: stream, Subjects: []string{"fact.>"}, AllowDirect: true, MaxMsgsPerSubject: 1, AllowMsgTTL: true,
		},
	)
	require.NoError(t, err)
	s, err := b.js.Stream(t.Context(), stream)
	require.NoError(t, err)
	fading := func(text string) *nats.Msg {
		return &nats.Msg{Subject: "fact.a", Data: []byte(text), Header: nats.Header{jetstream.MsgTTLHeader: {"1s"}}}
	}
	gone := func() {
		t.Helper()
		require.Eventually(t, func() bool {
			_, err := s.GetLastMsgForSubject(context.Background(), "fact.a")
			return errors.Is(err, jetstream.ErrMsgNotFound)
		}, patience, 50*time.Millisecond)
	}
	stop := b.run(b.publisher(nil))
	b.insert(message("a", 1))
	b.insert(fading("2"))
	b.published()
	gone()
	b.insert(fading("3"))
	b.published() // by one that remembers another end
	gone()
	stop()
	b.run(b.publisher(nil))
	b.insert(message("a", 4))
	b.published() // by one that remembers nothing
	last, err := s.GetLastMsgForSubject(t.Context(), "fact.a")
	require.NoError(t, err)
	require.Equal(t, "4", string(last.Data))
	b.insert(message("a", 5))
	b.published()
}
