package nats

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
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

// rawClient speaks the protocol of NATS itself, so that it may send what no client library does.
type rawClient struct {
	t      *testing.T
	conn   net.Conn
	reader *bufio.Reader
}

func dialRaw(t *testing.T, url string) *rawClient {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "nats://"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	c := &rawClient{t: t, conn: conn, reader: bufio.NewReader(conn)}
	c.send(`CONNECT {"verbose":false,"headers":true}` + "\r\n")
	c.flush()
	return c
}

func (c *rawClient) send(text string) {
	c.t.Helper()
	_, err := c.conn.Write([]byte(text))
	require.NoError(c.t, err)
}

// publish sends a message with any bytes as headers.
func (c *rawClient) publish(subject, header, data string) {
	c.t.Helper()
	c.send(fmt.Sprintf("HPUB %s %d %d\r\n%s%s\r\n", subject, len(header), len(header)+len(data), header, data))
}

// flush waits until the server has processed what was sent.
func (c *rawClient) flush() {
	c.t.Helper()
	c.send("PING\r\n")
	require.NoError(c.t, c.conn.SetReadDeadline(time.Now().Add(time.Minute)))
	for {
		line, err := c.reader.ReadString('\n')
		require.NoError(c.t, err, "the server has closed the connection")
		require.False(c.t, strings.HasPrefix(line, "-ERR"), line)
		if strings.HasPrefix(line, "PONG") {
			return
		}
	}
}

// runMeter runs a meter until the test ends, and returns the agents that it blocks.
func runMeter(t *testing.T, js jetstream.JetStream, limits meter.Limits) <-chan meter.Excess {
	t.Helper()
	blocked := make(chan meter.Excess, 1)
	m := &Meter{
		JetStream: js, Limits: limits, Logger: slog.New(slog.DiscardHandler),
		Block: func(_ context.Context, excess meter.Excess) (bool, error) {
			blocked <- excess
			return true, nil
		},
		Disconnect: func(context.Context, int64) error { return nil },
	}
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
	return blocked
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
	server, js := startStreams(t)
	client := dialRaw(t, server.ClientURL())
	large := strings.Repeat("x", 64<<10)
	bytes := 0
	for _, subject := range []string{testCell.ObservedTick(testAgent), testCell.Applied(testAgent, "a")} {
		for _, header := range []string{
			"X", "XX", "XXX", "\r\n", "\r\n\r\n", "NATS/1.0", "NATS/1.0\r\n", "NATS/1.0\r\n\r\n",
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
				client.publish(subject, header, data)
				bytes += len(subject) + len(header) + len(data) + messageOverhead
			}
		}
	}
	client.flush()
	limits := meter.Limits{Messages: meter.Default().Messages, Bytes: int64(bytes) - 1, Subjects: 10}
	excess := awaitBlocked(t, runMeter(t, js, limits))
	require.EqualValues(t, testAgent, excess.AgentID)
	require.Contains(t, excess.Reason, " bytes ", "with one byte less, the agent would be within its limits")
}

func TestMeterCountsOnAfterTheServerHasRestarted(t *testing.T) {
	t.Parallel()
	server, js := startStreams(t)
	const messages = 3 * meterBatch
	publish := func(agent int64, count int) {
		t.Helper()
		for range count {
			_, err := js.Publish(natstest.Context(t), testCell.ObservedTick(agent), nil)
			require.NoError(t, err)
		}
	}
	limits := meter.Default()
	limits.Messages = messages
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
