package stored_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/stored"
	"lockstep.internal/tools/testkit/leaktest"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const stream = "FACTS"

func newStream(t *testing.T) (*natsd.Server, jetstream.JetStream, stored.Reader) {
	t.Helper()
	server := natstest.Server(t)
	js := natstest.JetStream(t, server)
	_, err := js.CreateStream(natstest.Context(t), jetstream.StreamConfig{
		Name: stream, Subjects: []string{"fact.>"}, AllowDirect: true,
	})
	require.NoError(t, err)
	return server, js, stored.Reader{JetStream: js, Stream: stream}
}

// publish publishes messages of fact.0 and fact.1 in turn, each with a size in bytes.
func publish(t *testing.T, js jetstream.JetStream, count, size int) {
	t.Helper()
	padding := make([]byte, size)
	for i := range count {
		_, err := js.PublishAsync("fact."+strconv.Itoa(i%2), padding)
		require.NoError(t, err)
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-natstest.Context(t).Done():
		require.Fail(t, "not all messages were stored")
	}
}

func read(t *testing.T, r stored.Reader, subjects string, from, to uint64) []uint64 {
	t.Helper()
	var sequences []uint64
	require.NoError(t, r.Read(natstest.Context(t), subjects, from, to, func(m stored.Message) error {
		require.Equal(t, "fact."+strconv.FormatUint((m.Sequence-1)%2, 10), m.Subject)
		require.Nil(t, m.Header)
		require.WithinDuration(t, time.Now(), m.Stored, time.Minute)
		sequences = append(sequences, m.Sequence)
		return nil
	}))
	return sequences
}

func TestReaderReadsARangeOverAllPagesWithoutAConsumer(t *testing.T) {
	t.Parallel()
	_, js, r := newStream(t)
	publish(t, js, 2500, 4<<10) // more than two pages
	all := read(t, r, "fact.>", 1, 9999)
	require.Len(t, all, 2500)
	require.Equal(t, all[9:2000], read(t, r, "fact.*", 10, 2000))
	require.Len(t, read(t, r, "fact.0", 1, 2500), 1250)
	require.Equal(t, []uint64{2498, 2500}, read(t, r, "fact.1", 2497, 2500))
	require.Equal(t, []uint64{2499}, read(t, r, "fact.0", 2498, 2499))
	require.Empty(t, read(t, r, "fact.2", 1, 2500))
	require.Empty(t, read(t, r, "fact.0", 2500, 2500))
	require.Empty(t, read(t, r, "fact.>", 3, 2))
	info, err := js.Stream(natstest.Context(t), stream)
	require.NoError(t, err)
	require.Zero(t, info.CachedInfo().State.Consumers)
}

func TestReaderStopsAtTheFirstError(t *testing.T) {
	t.Parallel()
	_, js, r := newStream(t)
	publish(t, js, 3, 1)
	enough, taken := errors.New("enough"), 0
	require.ErrorIs(t, r.Read(natstest.Context(t), "fact.>", 1, 3, func(stored.Message) error {
		taken++
		return enough
	}), enough)
	require.Equal(t, 1, taken)
}

func TestReaderStepsOverDeletedMessages(t *testing.T) {
	t.Parallel()
	_, js, r := newStream(t)
	publish(t, js, 6, 1)
	opened, err := js.Stream(natstest.Context(t), stream)
	require.NoError(t, err)
	for _, sequence := range []uint64{1, 3, 6} {
		require.NoError(t, opened.DeleteMsg(natstest.Context(t), sequence))
	}
	require.Equal(t, []uint64{2, 4, 5}, read(t, r, "fact.>", 1, 6))
	m, err := r.Get(natstest.Context(t), 3)
	require.NoError(t, err)
	require.Nil(t, m)
}

func TestReaderFindsTheFirstMessageOfATime(t *testing.T) {
	t.Parallel()
	_, js, r := newStream(t)
	publish(t, js, 3, 1)
	second, err := r.Get(natstest.Context(t), 2)
	require.NoError(t, err)
	found, err := r.Since(natstest.Context(t), second.Stored)
	require.NoError(t, err)
	require.Equal(t, uint64(2), found.Sequence)
	found, err = r.Since(natstest.Context(t), time.Now().Add(time.Hour))
	require.NoError(t, err)
	require.Nil(t, found)
	found, err = r.Since(natstest.Context(t), time.Unix(0, 0))
	require.NoError(t, err)
	require.Equal(t, uint64(1), found.Sequence)
}

func TestReaderReadsTheLastMessageOfASubject(t *testing.T) {
	t.Parallel()
	_, js, r := newStream(t)
	for _, value := range []string{"old", "new"} {
		_, err := js.PublishMsg(natstest.Context(t), &nats.Msg{
			Subject: "fact.1", Header: nats.Header{"ce-id": {value}}, Data: []byte(value),
		})
		require.NoError(t, err)
	}
	m, err := r.Last(natstest.Context(t), "fact.1")
	require.NoError(t, err)
	require.Equal(t, stored.Message{
		Subject: "fact.1", Header: nats.Header{"ce-id": {"new"}}, Data: []byte("new"), Sequence: 2, Stored: m.Stored,
	}, *m)
	m, err = r.Last(natstest.Context(t), "fact.2")
	require.NoError(t, err)
	require.Nil(t, m)
}

// forged are headers of the server about another message.
const forged = "Nats-Stream: FACTS\r\nNats-Subject: fact.victim\r\nNats-Sequence: 900\r\n" +
	"Nats-Time-Stamp: 2001-01-01T00:00:00Z\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: %d\r\n"

// TestHeadersOfPublishersReplaceNeitherSubjectNorSequence publishes headers that look like responses of the server.
func TestHeadersOfPublishersReplaceNeitherSubjectNorSequence(t *testing.T) {
	t.Parallel()
	compact := strings.ReplaceAll(strings.ReplaceAll(forged, ": ", ":"), "\r\n", "\n")
	for name, header := range map[string]string{
		"repeated":               "NATS/1.0\r\n" + forged + "\r\n",
		"ended early":            "NATS/1.0\r\n" + forged + "\r\nX: y\r\n\r\n",
		"ended early, compact":   "NATS/1.0\n" + compact + "\nX: y\r\n\r\n",
		"status":                 "NATS/1.0\r\nStatus: 204\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: %d\r\n\r\n",
		"end of page":            "NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: %d\r\n\r\nX: y\r\n\r\n",
		"not found":              "NATS/1.0 404 Message Not Found\r\n\r\n\r\n",
		"no header":              "\r\n\r\n",
		"invalid":                "x %d",
		"many values":            "NATS/1.0\n" + compact + strings.Repeat("a:\n", 200) + "\nX: y\r\n\r\n",
		"values for hidden ones": "NATS/1.0\n" + compact + strings.Repeat("a:\n", 40) + "\nX: y\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, js, r := newStream(t)
			for i := range 3 {
				natstest.PublishRaw(t, server.ClientURL(), "", "", natstest.RawMessage{
					Subject: "fact.attacker", Header: strings.ReplaceAll(header, "%d", strconv.Itoa(2*i)), Data: "forged",
				})
				_, err := js.Publish(natstest.Context(t), "fact.honest", []byte("honest"))
				require.NoError(t, err)
			}
			var got []string
			require.NoError(t, r.Read(natstest.Context(t), "fact.>", 1, 6, func(m stored.Message) error {
				require.WithinDuration(t, time.Now(), m.Stored, time.Minute)
				got = append(got, fmt.Sprintf("%d %s %s", m.Sequence, m.Subject, m.Data))
				return nil
			}))
			require.Equal(t, []string{
				"1 fact.attacker forged", "2 fact.honest honest", "3 fact.attacker forged", "4 fact.honest honest",
				"5 fact.attacker forged", "6 fact.honest honest",
			}, got)
		})
	}
}

func TestReaderReportsALostResponse(t *testing.T) {
	t.Parallel()
	_, js, r := newStream(t)
	_, err := js.UpdateStream(natstest.Context(t), jetstream.StreamConfig{Name: stream, Subjects: []string{"fact.>"}})
	require.NoError(t, err)
	publish(t, js, 1, 1)
	_, err = js.Conn().Subscribe("$JS.API.DIRECT.GET."+stream, func(m *nats.Msg) {
		_ = m.RespondMsg(&nats.Msg{Header: nats.Header{
			"Status": {"204"}, "Nats-Num-Pending": {"0"}, "Nats-Last-Sequence": {"1"},
		}})
	})
	require.NoError(t, err)
	err = r.Read(context.Background(), "fact.>", 1, 1, func(stored.Message) error { return nil })
	require.EqualError(t, err,
		"response to $JS.API.DIRECT.GET.FACTS: a message is missing: 0 is followed by one after 1")
}
