package outbox_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/outbox"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/topology"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
	"lockstep.internal/tools/testkit/pgtest"
)

func TestMessageArrivesUnchanged(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	messages := []*nats.Msg{
		{Subject: "fact.empty"},
		{
			Subject: "fact.full", Data: []byte{0, 1, 0xff},
			Header: nats.Header{"Kind": {"a", "b"}, "lower": {"ä"}, nats.MsgIdHdr: {"id-1"}},
		},
	}
	require.NoError(
		t,
		postgres.InTx(t.Context(), b.pool, func(tx pgx.Tx) error { return outbox.Insert(t.Context(), tx, messages...) }),
	)
	b.run(b.publisher(nil))
	b.awaitEmpty()
	facts, err := b.js.Stream(t.Context(), stream)
	require.NoError(t, err)
	empty, err := facts.GetMsg(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, "fact.empty", empty.Subject)
	require.Empty(t, empty.Data)
	require.Equal(t, "1", empty.Header.Get(outbox.RevisionHeader))
	full, err := facts.GetMsg(t.Context(), 2)
	require.NoError(t, err)
	require.Equal(t, messages[1].Data, full.Data)
	require.Equal(t, []string{"a", "b"}, full.Header["Kind"])
	require.Equal(t, []string{"ä"}, full.Header["lower"])
	require.Equal(t, "id-1", full.Header.Get(nats.MsgIdHdr))
}

// TestMessageOfAStatementIsPublishedIfItsRelationHasARow stores messages without a transaction around the statement.
func TestMessageOfAStatementIsPublishedIfItsRelationHasARow(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	// Only a notification makes the publisher read again.
	b.run(b.publisher(func(c *outbox.Config) { c.Interval = time.Hour }))
	statement := `WITH entity AS (
		INSERT INTO entities VALUES ($1, 1) ON CONFLICT DO NOTHING RETURNING name
	) ` + outbox.InsertFrom("entity", 2)
	for i, name := range []string{"one", "one", "two"} {
		arguments, err := outbox.Arguments(message("x", i))
		require.NoError(t, err)
		_, err = b.pool.Exec(t.Context(), statement, append([]any{name}, arguments...)...)
		require.NoError(t, err)
		b.awaitEmpty()
	}
	require.Equal(t, []string{"0", "2"}, b.onStream()["fact.x"])
	facts, err := b.js.Stream(t.Context(), stream)
	require.NoError(t, err)
	first, err := facts.GetMsg(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, first.Header["Kind"])
	_, err = outbox.Arguments(&nats.Msg{Subject: "fact.*"})
	require.ErrorIs(t, err, outbox.ErrInvalidMessage)
}

func TestRepeatedMessageIDIsPublishedOnce(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	require.NoError(t, postgres.InTx(t.Context(), b.pool, func(tx pgx.Tx) error {
		messages := make([]*nats.Msg, 0, 4)
		for _, id := range []string{"one", "two", "one", "three"} {
			messages = append(messages, &nats.Msg{Subject: "fact.x", Data: []byte(id), Header: nats.Header{nats.MsgIdHdr: {id}}})
		}
		return outbox.Insert(t.Context(), tx, messages...)
	}))
	b.run(b.publisher(nil))
	b.awaitEmpty()
	require.Equal(t, []string{"one", "two", "three"}, b.onStream()["fact.x"])
}

func TestInsertRejectsInvalidMessages(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	for name, m := range map[string]*nats.Msg{
		"no subject":          {},
		"wildcard":            {Subject: "fact.*"},
		"full wildcard":       {Subject: "fact.>"},
		"empty token":         {Subject: "fact..x"},
		"space":               {Subject: "fact.a b"},
		"too large":           {Subject: "fact.x", Data: bytes.Repeat([]byte{'x'}, topology.MaxMessageSize)},
		"too large a header":  {Subject: "fact.x", Header: nats.Header{"a": {strings.Repeat("x", topology.MaxMessageSize)}}},
		"reply":               {Subject: "fact.x", Reply: "other"},
		"revision":            {Subject: "fact.x", Header: nats.Header{outbox.RevisionHeader: {"7"}}},
		"expectation":         {Subject: "fact.x", Header: nats.Header{"Nats-Expected-Last-Sequence": {"7"}}},
		"line break":          {Subject: "fact.x", Header: nats.Header{"a": {"b\r\nc: d"}}},
		"zero byte":           {Subject: "fact.x", Header: nats.Header{"a": {"\x00"}}},
		"header not UTF-8":    {Subject: "fact.x", Header: nats.Header{"a": {"\xff"}}},
		"subject not UTF-8":   {Subject: "fact.\xff"},
		"header name invalid": {Subject: "fact.x", Header: nats.Header{"a b:": {"c"}}},
	} {
		err := postgres.InTx(t.Context(), b.pool, func(tx pgx.Tx) error { return outbox.Insert(t.Context(), tx, m) })
		require.ErrorIs(t, err, outbox.ErrInvalidMessage, name)
	}
	require.Zero(t, b.waiting())
}

func FuzzInsertAcceptsTheServersSubjects(f *testing.F) {
	for _, subject := range []string{"a.b", "a..b", "", ".", "a.*", "a*", "a>b", "a.>", "ä.b", "a b", "a\x00", "a\x7f"} {
		f.Add(subject)
	}
	f.Fuzz(func(t *testing.T, subject string) {
		if outbox.ValidateSubject(subject) == nil {
			require.True(t, server.IsValidLiteralSubject(subject), "%q", subject)
		}
	})
}

func TestSubjectWithoutAcknowledgementDelaysNoOther(t *testing.T) {
	t.Parallel()
	config := filepath.Join(t.TempDir(), "nats-server.conf")
	require.NoError(t, os.WriteFile(config, []byte(`
authorization {
  users: [
    {user: test, password: test}
    {user: publisher, password: test, permissions: {publish: {deny: "fact.denied"}}}
  ]
}`), 0o600))
	b := &fixture{t: t, url: pgtest.Database(t), server: natstest.Start(t, natsd.Options{ConfigFile: config})}
	b.pool = b.connect(b.url)
	b.migrate()
	b.js = natstest.JetStream(t, b.server, nats.UserInfo("test", "test"))
	b.createStream()
	quiet := nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})
	b.changes("denied", 2)
	b.options = []nats.Option{nats.UserInfo("publisher", "test"), quiet}
	b.run(b.publisher(func(c *outbox.Config) {
		c.AckTimeout = time.Hour
	}))
	b.changes("x", 5)
	b.awaitStream(map[string][]string{"fact.x": changesUpTo(5)})
	require.Eventually(t, func() bool { return b.waiting() == 2 }, timeout, time.Millisecond)
}

func TestNewReportsAllFaults(t *testing.T) {
	t.Parallel()
	_, err := outbox.New(outbox.Config{Batch: -1})
	for _, part := range []string{"pool", "NATS", "logger", "negative"} {
		require.ErrorContains(t, err, part)
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	registry := prometheus.NewPedanticRegistry()
	metrics, err := outbox.NewMetrics(registry)
	require.NoError(t, err)
	_, err = outbox.NewMetrics(registry)
	require.Error(t, err, "registered twice")
	b.run(b.publisher(func(c *outbox.Config) { c.Metrics = metrics }))
	b.changes("x", 3)
	b.awaitEmpty()
	value := func(name string) float64 { return metric(t, registry, name) }
	require.Eventually(t, func() bool { return value("lockstep_outbox_published_total") == 3 }, timeout, time.Millisecond)
	require.InDelta(t, 1, value("lockstep_outbox_active"), 0)
	require.Eventually(t, func() bool { return value("lockstep_outbox_waiting") == 0 }, timeout, time.Millisecond)
}
