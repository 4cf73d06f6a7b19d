package cursor_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/cursor"
	"lockstep.internal/libs/deadletter"
	"lockstep.internal/libs/topology"
)

const deadSubject = "lockstep.local.dead.test.fact.x"

func (f *fixture) dead(sequence uint64) *jetstream.RawStreamMsg {
	f.t.Helper()
	dead, err := f.js.Stream(f.t.Context(), "DEAD")
	require.NoError(f.t, err)
	m, err := dead.GetMsg(f.t.Context(), sequence)
	require.NoError(f.t, err)
	return m
}

func refuseBad(m *cursor.Message[string]) error {
	if strings.HasPrefix(string(m.Data), "bad") {
		return errors.New("not a\nnumber")
	}
	return decode(m)
}

func TestMalformedMessageIsDeadLetteredBeforeTheCursorMoves(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	c := b.consumer(func(c *cursor.Config[string]) { c.Decode = refuseBad })
	b.run(c)
	b.publish(1)
	b.awaitHandled(numbers(1))
	b.publishText("bad")
	b.publish(1)
	require.Eventually(t, func() bool { // stream DEAD does not exist yet, so the cursor does not move
		err := c.Check(t.Context())
		return err != nil && strings.Contains(err.Error(), "publish message 2 to DEAD")
	}, timeout, timeout/10000)
	epoch, sequence := b.cursor()
	require.Equal(t, [2]int64{1, 1}, [2]int64{epoch, sequence})

	createStream(t, b.js, "DEAD", "lockstep.local.dead.>")
	b.awaitHandled(numbers(2))
	b.cursorAt(1, 3)
	m := b.dead(1)
	require.Equal(t, deadSubject, m.Subject)
	require.Equal(t, "bad", string(m.Data))
	require.Equal(t, "id-bad", m.Header.Get("ce-id"), "its own headers stay")
	require.Equal(t, "malformed: not a number", m.Header.Get(deadletter.ReasonHeader))
	require.Equal(t, subject, m.Header.Get(deadletter.SubjectHeader))
	require.Equal(t, stream, m.Header.Get(deadletter.StreamHeader))
	require.Equal(t, "2", m.Header.Get(deadletter.SequenceHeader))
	require.Equal(t, "model", m.Header.Get(deadletter.ConsumerHeader))
}

func TestPartlyMalformedMessageIsDeadLetteredAndHandled(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	createStream(t, b.js, "DEAD", "lockstep.local.dead.>")
	b.publish(1)
	b.publishText("good, bad")
	b.publishText("bad")
	partly := func(c *cursor.Config[string]) {
		c.Decode = func(m *cursor.Message[string]) error {
			if string(m.Data) != "good, bad" {
				return refuseBad(m)
			}
			m.Value = "good"
			return &cursor.PartlyMalformedError{Err: errors.New("one of two is bad")}
		}
	}
	b.run(b.consumer(partly))
	b.awaitHandled([]string{"1", "good"})
	b.cursorAt(1, 3)
	m := b.dead(1)
	require.Equal(t, "good, bad", string(m.Data))
	require.Equal(t, "malformed: one of two is bad", m.Header.Get(deadletter.ReasonHeader))
	require.Equal(t, "bad", string(b.dead(2).Data))
}

func TestCrashAfterDeadLetterPublishesItOnce(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	createStream(t, b.js, "DEAD", "lockstep.local.dead.>")
	refusals := 3
	b.publishText("bad")
	b.publish(1)
	b.run(b.consumer(func(c *cursor.Config[string]) {
		c.Decode = refuseBad
		c.Handle = func(ctx context.Context, tx pgx.Tx, batch []cursor.Message[string]) error {
			if refusals--; refusals >= 0 { // the session fails after the dead letter was published, before the commit
				if _, err := tx.Exec(ctx, `SELECT pg_terminate_backend(pg_backend_pid())`); err != nil {
					return err
				}
			}
			return handle(ctx, tx, batch)
		}
	}))
	b.awaitHandled(numbers(1))
	require.Negative(t, refusals)
	dead, err := b.js.Stream(t.Context(), "DEAD")
	require.NoError(t, err)
	require.Equal(t, uint64(1), dead.CachedInfo().State.Msgs)
}

func TestBatchOfMalformedMessagesMovesTheCursor(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	createStream(t, b.js, "DEAD", "lockstep.local.dead.>")
	b.publishText("bad 1")
	b.publishText("bad 2")
	b.run(b.consumer(func(c *cursor.Config[string]) { c.Decode = refuseBad }))
	b.cursorAt(1, 2)
	require.Empty(t, b.handled())
}

func TestDeadLetterErrorMovesOneMessageToDeadAndHandlesTheOthers(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	createStream(t, b.js, "DEAD", "lockstep.local.dead.>")
	b.publish(10)
	deadLetterError := func(m *cursor.Message[string]) error {
		return &cursor.DeadLetterError{Sequence: m.Sequence, Err: errors.New("violates a rule")}
	}
	b.run(b.consumer(func(c *cursor.Config[string]) {
		c.Handle = func(ctx context.Context, tx pgx.Tx, batch []cursor.Message[string]) error {
			if err := handle(ctx, tx, batch); err != nil {
				return err
			}
			for i := range batch {
				if v := batch[i].Value; v == "3" || v == "4" || v == "10" {
					return fmt.Errorf("wrapped: %w", deadLetterError(&batch[i]))
				}
			}
			return nil
		}
	}))
	b.awaitHandled([]string{"1", "2", "5", "6", "7", "8", "9"})
	b.cursorAt(1, 10)
	for i, text := range []string{"3", "4", "10"} {
		m := b.dead(uint64(i + 1))
		require.Equal(t, text, string(m.Data))
		require.Equal(t, "violates a rule", m.Header.Get(deadletter.ReasonHeader))
	}
}

func TestDeadLetterErrorOutsideTheBatchIsRetried(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.publish(1)
	failures := 2
	b.run(b.consumer(func(c *cursor.Config[string]) {
		c.Handle = func(ctx context.Context, tx pgx.Tx, batch []cursor.Message[string]) error {
			if failures--; failures >= 0 {
				return &cursor.DeadLetterError{Sequence: 99, Err: errors.New("which?")}
			}
			return handle(ctx, tx, batch)
		}
	}))
	b.awaitHandled(numbers(1))
}

func TestTooLargeDeadLetterOmitsTheData(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	_, err := b.js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "DEAD", Subjects: []string{"lockstep.local.dead.>"}, MaxMsgSize: topology.MaxMessageSize, AllowDirect: true,
	})
	require.NoError(t, err)
	data := append([]byte("bad"), bytes.Repeat([]byte{'x'}, topology.MaxMessageSize-100)...)
	_, err = b.js.PublishMsg(
		t.Context(),
		&nats.Msg{Subject: subject, Data: data, Header: nats.Header{"Nats-Msg-Id": {"mine"}, "ce-id": {"large"}}},
	)
	require.NoError(t, err)
	b.run(b.consumer(func(c *cursor.Config[string]) { c.Decode = refuseBad }))
	b.cursorAt(1, 1)
	m := b.dead(1)
	require.Empty(t, m.Data)
	require.Equal(t, fmt.Sprint(len(data)), m.Header.Get(deadletter.OmittedHeader))
	require.Equal(t, "model/FACTS/1/1", m.Header.Get("Nats-Msg-Id"), "the original message id is not copied")
}
