package nats_test

import (
	"errors"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/deadletter"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	statenats "lockstep.internal/services/state/nats"
	"lockstep.internal/tools/testkit/natstest"
)

const cell = topology.Cell("local")

// count returns the number of messages of a stream.
func count(t *testing.T, js jetstream.JetStream, stream string) uint64 {
	t.Helper()
	opened, err := js.Stream(natstest.Context(t), stream)
	require.NoError(t, err)
	return opened.CachedInfo().State.Msgs
}

// TestDeadLetterGivesItsWriterNoAccess retries letters that a service has written about messages that never were.
func TestDeadLetterGivesItsWriterNoAccess(t *testing.T) {
	t.Parallel()
	js := natstest.JetStream(t, natstest.Server(t))
	ctx := natstest.Context(t)
	require.NoError(t, topology.Ensure(ctx, js, cell, topology.Options{StorageBytes: 100 << 20}))
	letters := statenats.DeadLetters{JetStream: js, Cell: cell}
	retry := func(service, subject string, sequence uint64, data string) error {
		t.Helper()
		letter := deadletter.New(cell, deadletter.Origin{Service: service, Subject: subject, Sequence: sequence},
			nats.Header{"ce-id": {"1"}}, []byte(data), errors.New("no good"))
		stored, err := js.PublishMsg(ctx, letter)
		require.NoError(t, err)
		return letters.Retry(ctx, stored.Sequence)
	}
	_, err := js.PublishMsg(ctx, &nats.Msg{
		Subject: cell.ObservedTick(7), Header: nats.Header{"ce-id": {"1"}}, Data: []byte("genuine"),
	})
	require.NoError(t, err)

	for _, stream := range topology.Streams() {
		if stream.Name == topology.StreamDead {
			continue
		}
		for _, service := range []string{"state", "deploys", "relay"} {
			subject, before := cell.Prefix(stream.Family)+".7.w", count(t, js, stream.Name)
			allowed := service == "state" && (stream.Name == topology.StreamObserved || stream.Name == topology.StreamApplied) ||
				service == "deploys" && stream.Name == topology.StreamSinks
			err := retry(service, subject, 1, "forged")
			if allowed {
				require.NoError(t, err)
				require.Equal(t, before+1, count(t, js, stream.Name))
				continue
			}
			require.Equal(t, errcode.FailedPrecondition, fault.CodeOf(err), "%s %s: %v", service, subject, err)
			require.Equal(t, before, count(t, js, stream.Name))
		}
	}

	observed := count(t, js, topology.StreamObserved)
	err = retry("deploys", cell.ObservedTick(7), 1, "forged")
	require.ErrorContains(t, err, "OBSERVED does not have its original any more")
	err = retry("deploys", cell.ObservedTick(7), 99, "genuine")
	require.ErrorContains(t, err, "OBSERVED does not have its original any more")
	require.Equal(t, observed, count(t, js, topology.StreamObserved))
	require.NoError(t, retry("deploys", cell.ObservedTick(7), 1, "genuine"))
	require.Equal(t, observed+1, count(t, js, topology.StreamObserved))
}

func TestDeadLetterIsRemovedOnce(t *testing.T) {
	t.Parallel()
	js := natstest.JetStream(t, natstest.Server(t))
	ctx := natstest.Context(t)
	require.NoError(t, topology.Ensure(ctx, js, cell, topology.Options{StorageBytes: 100 << 20}))
	letters := statenats.DeadLetters{JetStream: js, Cell: cell}
	for range 2 {
		_, err := js.PublishMsg(ctx, deadletter.New(cell, deadletter.Origin{
			Service: "state", Subject: cell.Applied(7, "w"),
		}, nil, nil, errors.New("no good")))
		require.NoError(t, err)
	}
	require.NoError(t, letters.Retry(ctx, 1))
	require.NoError(t, letters.Drop(ctx, 2))
	require.Zero(t, count(t, js, topology.StreamDead))
	require.EqualValues(t, 1, count(t, js, topology.StreamApplied))
	require.Equal(t, errcode.NotFound, fault.CodeOf(letters.Retry(ctx, 1)))
	require.Equal(t, errcode.NotFound, fault.CodeOf(letters.Drop(ctx, 2)))
	require.EqualValues(t, 1, count(t, js, topology.StreamApplied))
}
