package detection_test

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/services/deploys/ownership"
	"lockstep.internal/tools/detection"
	"lockstep.internal/tools/replay"
	"lockstep.internal/tools/testkit/natstest"
)

// store publishes messages to a new stream OBSERVED.
func store(t *testing.T, messages []*nats.Msg) jetstream.JetStream {
	t.Helper()
	js := natstest.JetStream(t, natstest.Server(t))
	require.NoError(t, topology.Ensure(natstest.Context(t), js, cell, topology.Options{StorageBytes: 1 << 28}))
	for _, m := range messages {
		_, err := js.PublishMsg(t.Context(), m)
		require.NoError(t, err)
	}
	return js
}

// replayed replays a range of OBSERVED and returns the sequences of the rejected messages, too.
func replayed(t *testing.T, d *detection.Detector, js jetstream.JetStream, opts replay.Options) (
	detection.Replayed, []detection.Rejection,
) {
	t.Helper()
	opts.Subject = "observed.>"
	var rejections []detection.Rejection
	result, err := d.Replay(t.Context(), js, cell, opts, func(r detection.Rejection) error {
		rejections = append(rejections, r)
		return nil
	})
	require.NoError(t, err)
	return result, rejections
}

// lines encodes facts in the order of a comparison.
func lines(t *testing.T, facts []events.DeployFact) []string {
	t.Helper()
	var out []string
	for _, c := range detection.Compare(facts, facts, false) {
		raw, err := json.Marshal(c.Fact)
		require.NoError(t, err)
		out = append(out, string(raw))
	}
	return out
}

func TestBatchSizeMakesNoDifference(t *testing.T) {
	t.Parallel()
	t.Run("recorded", func(t *testing.T) {
		t.Parallel()
		messages := recorded(t)
		_, want := detect(t, messages)
		d := detection.New(cell, environment.Rules{})
		got, rejections := replayed(t, d, store(t, messages), replay.Options{})
		require.Equal(t, lines(t, want), lines(t, got.Facts))
		require.Equal(t, len(messages), got.Messages)
		require.False(t, got.Partial)
		require.Empty(t, rejections)
	})
	t.Run("forged", func(t *testing.T) {
		t.Parallel()
		f := newForgery(t)
		one, batched := detection.New(cell, environment.Rules{}), detection.New(cell, environment.Rules{})
		decide(one)
		decide(batched)
		want := f.detect(t, one)
		got, rejections := replayed(t, batched, store(t, f.messages), replay.Options{})
		require.Equal(t, lines(t, want), lines(t, got.Facts))
		require.Len(t, rejections, len(f.forged))
		require.True(t, slices.IsSortedFunc(rejections, func(a, b detection.Rejection) int {
			return int(a.Sequence) - int(b.Sequence)
		}))
		for _, r := range rejections {
			require.True(t, f.forged[int(r.Sequence)])
			_, is := errors.AsType[*ownership.ForeignError](r.Err)
			require.True(t, is, "%d: %v", r.Sequence, r.Err)
		}
		late := want[0]
		late.ObservedAt = forgedTick
		require.False(t, batched.Covers(&late), "the time of a forged tick does not count")
	})
}

func TestReplayOfRangeHasOnlyItsFacts(t *testing.T) {
	t.Parallel()
	messages := recorded(t)
	malformed := slices.Insert(slices.Clone(messages), 4, &nats.Msg{Subject: cell.ObservedTick(1), Data: []byte("x")})
	js := store(t, malformed)
	_, all := detect(t, messages)
	for from := range uint64(len(malformed)) {
		d := detection.New(cell, environment.Rules{})
		before, facts := 0, 0
		for i, m := range malformed {
			more, _ := d.Take(uint64(i+1), m.Subject, m.Header, m.Data)
			if facts += len(more); uint64(i+1) < from {
				before = facts
			}
		}
		require.Len(t, all, facts)
		d = detection.New(cell, environment.Rules{})
		got, rejections := replayed(t, d, js, replay.Options{FromSequence: from})
		require.Equal(t, lines(t, all[before:]), lines(t, got.Facts), "from %d", from)
		require.Len(t, rejections, 1)
		require.Equal(t, uint64(5), rejections[0].Sequence)
		require.Equal(t, from > 5, rejections[0].BeforeRange)
		for i := range all {
			require.Equal(t, i >= before, d.Covers(&all[i]), "from %d: %d", from, i)
		}
	}
	d := detection.New(cell, environment.Rules{})
	got, _ := replayed(t, d, js, replay.Options{FromSequence: 1000})
	require.Empty(t, got.Facts)
	require.False(t, d.Covers(&all[0]))
}

func TestReplayOfTruncatedStreamIsPartial(t *testing.T) {
	t.Parallel()
	js := store(t, recorded(t))
	stream, err := js.Stream(t.Context(), topology.StreamObserved)
	require.NoError(t, err)
	require.NoError(t, stream.Purge(t.Context(), jetstream.WithPurgeSequence(3)))
	d := detection.New(cell, environment.Rules{})
	got, _ := replayed(t, d, js, replay.Options{})
	require.True(t, got.Partial)
}
