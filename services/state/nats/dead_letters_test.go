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
	copied := []struct{ service, stream, subject string }{
		{"deploys", topology.StreamObserved, cell.ObservedTick(7)},
		{"admission", topology.StreamJobs, cell.Job(7, 8, "preparing")},
		{"runners", topology.StreamAdmission, cell.Admission(7, 8, "decided")},
	}
	for _, c := range copied {
		_, err := js.PublishMsg(ctx, &nats.Msg{
			Subject: c.subject, Header: nats.Header{"ce-id": {"1"}}, Data: []byte("genuine"),
		})
		require.NoError(t, err)
	}

	for _, stream := range topology.Streams() {
		if stream.Name == topology.StreamDead {
			continue
		}
		for _, service := range []string{"state", "deploys", "relay", "runners", "admission"} {
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

	for _, c := range copied {
		before := count(t, js, c.stream)
		err := retry(c.service, c.subject, 1, "forged")
		require.ErrorContains(t, err, c.stream+" does not have its original any more")
		err = retry(c.service, c.subject, 99, "genuine")
		require.ErrorContains(t, err, c.stream+" does not have its original any more")
		require.Equal(t, before, count(t, js, c.stream))
		require.NoError(t, retry(c.service, c.subject, 1, "genuine"))
		require.Equal(t, before+1, count(t, js, c.stream))
	}
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
