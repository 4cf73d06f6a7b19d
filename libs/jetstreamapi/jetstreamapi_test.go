package jetstreamapi_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"lockstep.internal/libs/jetstreamapi"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const stream = "FACTS"

func newStream(t *testing.T) (*natsd.Server, jetstream.JetStream) {
	t.Helper()
	server := natstest.Server(t)
	// The client reports headers that it cannot decode.
	js := natstest.JetStream(t, server, nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: stream, Subjects: []string{"fact.>"}})
	require.NoError(t, err)
	return server, js
}

func publish(t *testing.T, js jetstream.JetStream, subjects ...string) {
	t.Helper()
	for _, subject := range subjects {
		_, err := js.Publish(t.Context(), subject, []byte(subject))
		require.NoError(t, err)
	}
}

func TestGetReturnsWhatTheLeaderHasStored(t *testing.T) {
	t.Parallel()
	server, js := newStream(t)
	publish(t, js, "fact.a", "fact.b")
	forged := "NATS/1.0\r\nStatus: 404\r\nNats-Sequence: 1\r\nNats-Subject: fact.a\r\n\r\n"
	natstest.PublishRaw(t, server.ClientURL(), "", "",
		natstest.RawMessage{Subject: "fact.c", Header: forged},
		natstest.RawMessage{Subject: "fact.c", Header: "NATS/1.0\r\nno colon\r\n\r\n", Data: "x"})
	publish(t, js, "fact.d") // It is stored after the ones without an acknowledgement.
	get := func(wanted jetstreamapi.GetRequest) *jetstream.RawStreamMsg {
		m, err := jetstreamapi.Get(t.Context(), js, stream, wanted)
		require.NoError(t, err)
		require.WithinDuration(t, time.Now(), m.Time, time.Minute)
		return m
	}
	first := get(jetstreamapi.GetRequest{Sequence: 1})
	require.Equal(t, "fact.a", first.Subject)
	require.Equal(t, "fact.a", string(first.Data))
	require.EqualValues(t, 2, get(jetstreamapi.GetRequest{Sequence: 1, Subjects: "fact.b"}).Sequence)
	third := get(jetstreamapi.GetRequest{Sequence: 3})
	require.Equal(t, "fact.c", third.Subject)
	require.EqualValues(t, 3, third.Sequence)
	require.Equal(t, "404", third.Header.Get("Status"))
	require.Nil(t, get(jetstreamapi.GetRequest{Sequence: 4}).Header, "they cannot be decoded")

	_, err := jetstreamapi.Get(t.Context(), js, stream, jetstreamapi.GetRequest{Sequence: 6})
	require.ErrorIs(t, err, jetstream.ErrMsgNotFound)
	_, err = jetstreamapi.Get(t.Context(), js, "OTHER", jetstreamapi.GetRequest{Sequence: 1})
	require.ErrorIs(t, err, jetstream.ErrStreamNotFound)
}

func newPull(t *testing.T, js jetstream.JetStream) jetstreamapi.Pull {
	t.Helper()
	consumer, err := js.CreateConsumer(t.Context(), stream, jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy})
	require.NoError(t, err)
	return jetstreamapi.Pull{
		JetStream: js, Stream: stream, Consumer: consumer.CachedInfo().Name, Messages: 2, Bytes: 1 << 20,
	}
}

func TestPullEndsWhenItsResponseIsComplete(t *testing.T) {
	t.Parallel()
	_, js := newStream(t)
	pull := newPull(t, js)
	publish(t, js, "fact.a", "fact.b", "fact.c")
	received := []string{}
	require.NoError(t, pull.Do(t.Context(), func(m *nats.Msg) error {
		received = append(received, m.Subject)
		return nil
	}))
	require.Equal(t, []string{"fact.a", "fact.b"}, received)
}

func TestPullReturnsItsError(t *testing.T) {
	t.Parallel()
	_, js := newStream(t)
	pull := newPull(t, js)
	publish(t, js, "fact.a")
	failure := errors.New("failure")
	require.ErrorIs(t, pull.Do(t.Context(), func(*nats.Msg) error { return failure }), failure)

	ignore := func(*nats.Msg) error { return nil }
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(failure)
	require.ErrorIs(t, pull.Do(ctx, ignore), failure)

	require.NoError(t, js.DeleteConsumer(t.Context(), stream, pull.Consumer))
	require.ErrorIs(t, pull.Do(t.Context(), ignore), nats.ErrNoResponders)
}

func TestPullReportsAConsumerThatIsDeletedMeanwhile(t *testing.T) {
	t.Parallel()
	_, js := newStream(t)
	pull := newPull(t, js)
	publish(t, js, "fact.a")
	require.ErrorContains(t, pull.Do(t.Context(), func(*nats.Msg) error {
		return js.DeleteConsumer(t.Context(), stream, pull.Consumer)
	}), "Consumer Deleted")
}
