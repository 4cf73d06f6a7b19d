package dead_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/deadletter"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	statenats "lockstep.internal/services/state/nats"
	"lockstep.internal/tools/dead"
	"lockstep.internal/tools/testkit/leaktest"
	"lockstep.internal/tools/testkit/natstest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const cell = topology.Cell("local")

// operations calls the state service's own code without its API.
type operations struct{ letters statenats.DeadLetters }

func (o operations) RetryDeadLetter(
	ctx context.Context, r *connect.Request[statev1.RetryDeadLetterRequest],
) (*connect.Response[statev1.RetryDeadLetterResponse], error) {
	return connect.NewResponse(&statev1.RetryDeadLetterResponse{}), o.letters.Retry(ctx, r.Msg.GetSequence())
}

func (o operations) DropDeadLetter(
	ctx context.Context, r *connect.Request[statev1.DropDeadLetterRequest],
) (*connect.Response[statev1.DropDeadLetterResponse], error) {
	return connect.NewResponse(&statev1.DropDeadLetterResponse{}), o.letters.Drop(ctx, r.Msg.GetSequence())
}

// letter is a message as a consumer puts it on DEAD.
func letter(subject, text string, more ...string) *nats.Msg {
	m := &nats.Msg{Subject: cell.Dead("state", subject), Data: []byte(text), Header: nats.Header{
		"ce-id": {
			"id-" + text,
		},
		"Lockstep-Dead-Reason":   {"no good"},
		"Lockstep-Dead-Consumer": {"applied"},
		"Lockstep-Dead-Subject":  {subject},
		"Lockstep-Dead-Stream":   {"APPLIED"},
		"Lockstep-Dead-Sequence": {"12"},
		"Nats-Msg-Id":            {"applied/" + text},
	}}
	for i := 0; i+1 < len(more); i += 2 {
		m.Header.Set(more[i], more[i+1])
	}
	return m
}

// newQueue returns a queue with six dead letters of two agents, alternating. The third has no data.
func newQueue(t *testing.T) dead.Queue {
	t.Helper()
	js := natstest.JetStream(t, natstest.Server(t))
	require.NoError(t, topology.Ensure(natstest.Context(t), js, cell, topology.Options{StorageBytes: 1 << 28}))
	for i := range 6 {
		m := letter(cell.Applied(int64(7+i%2), "w"), strconv.Itoa(i+1))
		if i == 2 {
			m.Header.Set("Lockstep-Dead-Omitted", "99")
		}
		_, err := js.PublishMsg(t.Context(), m)
		require.NoError(t, err)
	}
	return dead.Queue{
		JetStream: js, Cell: cell, Operations: operations{statenats.DeadLetters{JetStream: js, Cell: cell}},
	}
}

func list(t *testing.T, b dead.Queue, s dead.Selection) string {
	t.Helper()
	out := ""
	require.NoError(t, b.Each(t.Context(), s, func(l deadletter.Letter) error { out += string(l.Data); return nil }))
	return out
}

// applied is what is on APPLIED, in order.
func applied(t *testing.T, b dead.Queue) string {
	t.Helper()
	stream, err := b.JetStream.Stream(t.Context(), topology.StreamApplied)
	require.NoError(t, err)
	out := ""
	for sequence := uint64(1); sequence <= stream.CachedInfo().State.LastSeq; sequence++ {
		m, err := stream.GetMsg(t.Context(), sequence)
		require.NoError(t, err)
		maps.DeleteFunc(m.Header,
			func(name string, _ []string) bool { return strings.HasPrefix(name, "Nats-") }) // the server's own
		require.Equal(t, nats.Header{"ce-id": {"id-" + string(m.Data)}}, m.Header, "its own headers and no others")
		out += string(m.Data)
	}
	return out
}

func TestSelection(t *testing.T) {
	t.Parallel()
	b := newQueue(t)
	for want, s := range map[string]dead.Selection{
		"123456": {},
		"135":    {Subject: "applied.7.*"},
		"246":    {Subject: "applied.8.>", Service: "state"},
		"":       {Service: "runners"},
		"25":     {Sequences: []uint64{5, 2, 5}},
	} {
		require.Equal(t, want, list(t, b, s), "%+v", s)
	}
	err := b.Each(t.Context(), dead.Selection{Sequences: []uint64{99}}, nil)
	require.Equal(t, errcode.NotFound, fault.CodeOf(err))
	for _, s := range []dead.Selection{{Subject: "applied..7"}, {Service: "a.b"}, {Subject: "a b"}} {
		require.Equal(t, errcode.InvalidArgument, fault.CodeOf(b.Each(t.Context(), s, nil)), "%+v", s)
	}
}

func TestRetryPublishesInOrderAndRemoves(t *testing.T) {
	t.Parallel()
	b := newQueue(t)
	var results []string
	require.NoError(
		t,
		b.Retry(t.Context(), dead.Selection{Sequences: []uint64{6, 1}}, func(l deadletter.Letter, err error) error {
			results = append(results, fmt.Sprint(l.Sequence, err))
			return nil
		}),
	)
	require.Equal(t, []string{"1 <nil>", "6 <nil>"}, results)
	require.Equal(t, "16", applied(t, b))
	require.Equal(t, "2345", list(t, b, dead.Selection{}))

	refused := 0
	require.NoError(t, b.Retry(t.Context(), dead.Selection{}, func(l deadletter.Letter, err error) error {
		if err != nil {
			refused++
			require.Equal(t, uint64(3), l.Sequence)
			require.ErrorContains(t, err, "data of 99 bytes was too large")
		}
		return nil
	}))
	require.Equal(t, 1, refused)
	require.Equal(t, "16245", applied(t, b), "in the order in which they came")
	require.Equal(t, "3", list(t, b, dead.Selection{}), "what cannot be retried stays")
}

func TestDrop(t *testing.T) {
	t.Parallel()
	b := newQueue(t)
	dropped := 0
	count := func(deadletter.Letter) error { dropped++; return nil }
	require.NoError(t, b.Drop(t.Context(), dead.Selection{Subject: "applied.7.>"}, count))
	require.Equal(t, 3, dropped)
	require.Equal(t, "246", list(t, b, dead.Selection{}))
	require.NoError(t, b.Drop(t.Context(), dead.Selection{}, count))
	require.Equal(t, 6, dropped)
	require.Empty(t, list(t, b, dead.Selection{}))
	require.Empty(t, applied(t, b))
}

// A retry that is interrupted between publish and removal publishes the message twice.
func TestInterruptedRetryLosesNothing(t *testing.T) {
	t.Parallel()
	b := newQueue(t)
	enough := errors.New("enough")
	err := b.Retry(t.Context(), dead.Selection{Subject: "applied.8.>"}, func(l deadletter.Letter, _ error) error {
		if l.Sequence == 2 {
			return enough
		}
		return nil
	})
	require.ErrorIs(t, err, enough)
	require.Equal(t, "2", applied(t, b))
	require.Equal(t, "13456", list(t, b, dead.Selection{}))

	// Two at once: the other has removed it already.
	stream, err := b.JetStream.Stream(t.Context(), topology.StreamDead)
	require.NoError(t, err)
	none := func(deadletter.Letter) error { return nil }
	require.NoError(t, b.Drop(t.Context(), dead.Selection{Sequences: []uint64{4}}, none))
	removed := false
	require.NoError(t, b.Each(t.Context(), dead.Selection{Sequences: []uint64{5}}, func(deadletter.Letter) error {
		require.NoError(t, stream.DeleteMsg(t.Context(), 5))
		return nil
	}))
	require.NoError(t, b.Drop(t.Context(), dead.Selection{}, func(l deadletter.Letter) error {
		if !removed {
			removed = true
			require.NoError(t, stream.DeleteMsg(t.Context(), 6))
		}
		return nil
	}))
	require.Empty(t, list(t, b, dead.Selection{}))
}
