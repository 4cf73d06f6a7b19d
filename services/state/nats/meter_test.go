package nats

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/topology"
	"lockstep.internal/services/state/meter"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
)

// newMeter returns a meter and the agents that it blocks.
func newMeter(js jetstream.JetStream, limits meter.Limits) (*Meter, <-chan meter.Excess) {
	blocked := make(chan meter.Excess, 1)
	return &Meter{
		JetStream: js, Limits: limits, Logger: slog.New(slog.DiscardHandler),
		Block: func(_ context.Context, excess meter.Excess) (bool, error) {
			blocked <- excess
			return true, nil
		},
		Unblock:    func(context.Context, time.Time, []int64) error { return nil },
		Disconnect: func(context.Context, int64) error { return nil },
	}, blocked
}

// runMeter runs a meter until the test ends, and returns the agents that it blocks.
func runMeter(t *testing.T, js jetstream.JetStream, limits meter.Limits) <-chan meter.Excess {
	t.Helper()
	m, blocked := newMeter(js, limits)
	run(t, m)
	return blocked
}

// run runs a meter until the test ends.
func run(t *testing.T, m *Meter) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := m.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
}

func awaitBlocked(t *testing.T, blocked <-chan meter.Excess) meter.Excess {
	t.Helper()
	select {
	case excess := <-blocked:
		return excess
	case <-time.After(time.Minute):
		t.Fatal("the meter blocks nobody")
		return meter.Excess{}
	}
}

const (
	testCell  = topology.Cell("local")
	testAgent = 17
)

func startStreams(t *testing.T) (*natsd.Server, jetstream.JetStream) {
	t.Helper()
	server := natstest.Server(t)
	ignore := func(*nats.Conn, *nats.Subscription, error) {} // the default prints
	js := natstest.JetStream(t, server, nats.ErrorHandler(ignore))
	require.NoError(t, topology.Ensure(t.Context(), js, testCell, topology.Options{}))
	return server, js
}

func TestMeterCountsEveryByteOfMessagesWithHostileHeaders(t *testing.T) {
	t.Parallel()
	for stream, subject := range map[string]string{
		topology.StreamObserved: testCell.ObservedTick(testAgent),
		topology.StreamApplied:  testCell.Applied(testAgent, "a"),
	} {
		t.Run(stream, func(t *testing.T) {
			t.Parallel()
			countsEveryByte(t, stream, subject)
		})
	}
}

func countsEveryByte(t *testing.T, stream, subject string) {
	t.Helper()
	server, js := startStreams(t)
	messages := []natstest.RawMessage{}
	large := strings.Repeat("x", 64<<10)
	bytes := 0
	for _, header := range []string{
		"X", "XY", "XYZ", "\r\n", "\r\n\r\n", "NATS/1.0", "NATS/1.0\r\n", "NATS/1.0\r\n\r\n",
		"NATS/1.0\r\nno colon\r\n\r\n",
		"NATS/1.0\r\nA: b",
		"NATS/1.0\r\nA: b\r\n\r\nC: d\r\n\r\n",
		"NATS/1.0\r\nNats-Msg-Size: 0\r\n\r\n",
		"NATS/1.0\r\nStatus: 100\r\n\r\n",
		"NATS/1.0\r\nStatus: 400\r\n\r\n",
		"NATS/1.0\r\nStatus: 404\r\n\r\n",
		"NATS/1.0\r\nStatus: 408\r\n\r\n",
		"NATS/1.0\r\nStatus: 409\r\nDescription: Consumer Deleted\r\n\r\n",
		"NATS/1.0\r\nStatus: 503\r\n\r\n",
		"NATS/1.0\r\nX: " + large[:60<<10] + "\r\n",
	} {
		for _, data := range []string{"", large} {
			messages = append(messages, natstest.RawMessage{Subject: subject, Header: header, Data: data})
			bytes += len(subject) + len(header) + len(data) + messageOverhead
		}
	}
	natstest.PublishRaw(t, server.ClientURL(), "", "", messages...)
	limits := meter.Default()
	limits.DailyBytes = map[string]int64{stream: int64(bytes) - 1}
	excess := awaitBlocked(t, runMeter(t, js, limits))
	require.EqualValues(t, testAgent, excess.AgentID)
	require.Contains(t, excess.Reason, " bytes ", "with one byte less, the agent would be within its limits")
}

func TestMeterCountsOnAfterTheServerHasRestarted(t *testing.T) {
	t.Parallel()
	server, js := startStreams(t)
	const messages = 3 * meterMessages
	publish := func(agent int64, count int) {
		t.Helper()
		for range count {
			_, err := js.Publish(natstest.Context(t), testCell.ObservedTick(agent), nil)
			require.NoError(t, err)
		}
	}
	limits := meter.Default()
	size := int64(messageOverhead + len(testCell.ObservedTick(testAgent)))
	limits.DailyBytes = map[string]int64{topology.StreamObserved: messages * size}
	blocked := runMeter(t, js, limits)
	publish(testAgent, messages)
	publish(testAgent+1, messages+1)
	require.EqualValues(t, testAgent+1, awaitBlocked(t, blocked).AgentID, "the meter has read all messages before")
	require.NoError(t, server.Restart())
	natstest.Reconnected(t, js.Conn())
	publish(testAgent+2, messages+1)
	require.EqualValues(t, testAgent+2, awaitBlocked(t, blocked).AgentID, "no message is counted again")
	publish(testAgent, 1)
	require.EqualValues(t, testAgent, awaitBlocked(t, blocked).AgentID, "the messages before the restart count")
}

func TestBlockStoredWhileTheMeterStartsIsKept(t *testing.T) {
	t.Parallel()
	_, js := startStreams(t)
	limits := meter.Default()
	limits.DailyBytes = map[string]int64{topology.StreamObserved: 0}
	m, blocked := newMeter(js, limits)
	type unblock struct {
		before time.Time
		except []int64
	}
	unblocked := make(chan unblock, 1)
	attempt, blockedAt := 0, time.Time{}
	m.Unblock = func(ctx context.Context, before time.Time, except []int64) error {
		if attempt++; attempt > 1 {
			unblocked <- unblock{before, except}
			return nil
		}
		blockedAt = time.Now()
		if _, err := js.Publish(ctx, testCell.ObservedTick(testAgent), nil); err != nil {
			return err
		}
		<-blocked
		return errors.New("the database is not available")
	}
	run(t, m)
	select {
	case last := <-unblocked:
		require.Equal(t, []int64{testAgent}, last.except, "the meter has blocked it meanwhile")
		require.True(t, last.before.Before(blockedAt), "another replica may have stored a block")
	case <-time.After(time.Minute):
		t.Fatal("the meter unblocks nobody")
	}
}
