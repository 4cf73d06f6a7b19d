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

// insert adds a message to the outbox.
func (f *fixture) insert(m *nats.Msg) {
	f.t.Helper()
	require.NoError(
		f.t, postgres.InTx(f.t.Context(), f.pool, func(tx pgx.Tx) error { return outbox.Insert(f.t.Context(), tx, m) }),
	)
}

// The last message of the subject expires, so the publisher's last known sequence is wrong.
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
		}, timeout, 50*time.Millisecond)
	}
	stop := b.run(b.publisher(nil))
	b.insert(message("a", 1))
	b.insert(fading("2"))
	b.awaitEmpty()
	gone()
	b.insert(fading("3"))
	b.awaitEmpty() // by a publisher with an outdated last sequence
	gone()
	stop()
	b.run(b.publisher(nil))
	b.insert(message("a", 4))
	b.awaitEmpty() // by a publisher without a last sequence
	last, err := s.GetLastMsgForSubject(t.Context(), "fact.a")
	require.NoError(t, err)
	require.Equal(t, "4", string(last.Data))
	b.insert(message("a", 5))
	b.awaitEmpty()
}
