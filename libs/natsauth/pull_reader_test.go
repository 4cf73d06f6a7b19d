package natsauth_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
)

// signals is a log writer that sends each line to the channel.
type signals chan string

func (s signals) Write(line []byte) (int, error) {
	select {
	case s <- string(line):
	default:
	}

	return len(line), nil
}

func (s signals) await(t *testing.T, text string) {
	t.Helper()

	for !strings.Contains(receive(t, s), text) {
	}
}

type runningReader struct {
	log      signals
	received chan jetstream.Msg
	stop     func()
}

func startPullReader(t *testing.T, conn *nats.Conn, stream, consumer string, expiry time.Duration) *runningReader {
	t.Helper()

	in := &runningReader{log: make(signals, 1000), received: make(chan jetstream.Msg, 10_000)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	part := &natsauth.PullReader{
		Conn: conn, Stream: stream, Consumer: consumer,
		Handle: func(m jetstream.Msg) { in.received <- m }, RequestTimeout: expiry,
		Logger: slog.New(slog.NewTextHandler(in.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}

	go func() { ended <- part.Run(ctx) }()

	in.stop = func() {
		cancel()
		require.NoError(t, receive(t, ended))
	}

	return in
}

// TestPullReaderContinuesAfterReconnect uses requests that outlive the test. If old requests received messages
// after a reconnect, each message would be late. One or two may be, until the server has noticed that the old
// connection is dead.
func TestPullReaderContinuesAfterReconnect(t *testing.T) {
	t.Parallel()

	c := startCell(t)
	config := topology.AgentConsumers(cellName, agentOne)[0].Config
	config.AckWait = 3 * time.Second
	_, err := c.js.UpdateConsumer(testContext(t), "DESIRED", config)
	require.NoError(t, err)

	agent := c.agent(t, agentOne)
	in := startPullReader(t, agent.Conn, "DESIRED", "dispatcher-17", 50*time.Second)
	in.log.await(t, "pull reader started")

	for round := range 3 {
		late := 0

		for i := range 6 {
			subject := fmt.Sprintf("lockstep.local.desired.17.%d-%d", round, i)
			_, err := c.js.Publish(testContext(t), subject, []byte("x"))
			require.NoError(t, err)

			message := receive(t, in.received)
			for message.Subject() != subject {
				message = receive(t, in.received) // One before it, again: this machine was slower than AckWait.
			}

			metadata, err := message.Metadata()
			require.NoError(t, err)
			require.NoError(t, message.DoubleAck(testContext(t)))

			if metadata.NumDelivered > 1 {
				late++
			}
		}

		require.LessOrEqual(t, late, 2)
		require.NoError(t, agent.ForceReconnect())
		in.log.await(t, "pull reader started")
	}

	in.stop()
	require.Zero(t, consumerPending(t, c, "DESIRED", "dispatcher-17"))
}

func TestPullReaderReportsAConsumerThatDoesNotAnswer(t *testing.T) {
	t.Parallel()

	c := startCell(t)
	agent := c.agent(t, agentOne)
	errs, received := make(chan error, 1000), make(chan jetstream.Msg, 1)
	reader := &natsauth.PullReader{
		Conn: agent.Conn, Stream: "DESIRED", Consumer: "dispatcher-17", Handle: func(m jetstream.Msg) { received <- m },
		Logger: slog.New(slog.DiscardHandler), RequestTimeout: time.Second, SilentAfter: time.Second,
		SetError: func(err error) { errs <- err },
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)

	go func() { ended <- reader.Run(ctx) }()

	require.NoError(t, receive(t, errs), "it answers")
	require.NoError(t, c.js.DeleteConsumer(testContext(t), "DESIRED", "dispatcher-17"))

	err := receive(t, errs)
	for err == nil {
		err = receive(t, errs)
	}

	require.ErrorContains(t, err, "consumer dispatcher-17 of stream DESIRED has not answered for")
	require.NoError(t, topology.EnsureAgent(testContext(t), c.js, cellName, agentOne))

	for err != nil {
		err = receive(t, errs)
	}

	cancel()
	require.NoError(t, receive(t, ended))
}

func TestPullReaderWaitsForItsConsumer(t *testing.T) {
	t.Parallel()

	c := startCell(t)
	require.NoError(t, c.js.DeleteConsumer(testContext(t), "CONTROL", "watcher-17"))
	agent := c.agent(t, agentOne)
	in := startPullReader(t, agent.Conn, "CONTROL", "watcher-17", 0)
	in.log.await(t, "pull reader waits")

	require.NoError(t, topology.EnsureAgent(testContext(t), c.js, cellName, agentOne))
	in.log.await(t, "pull reader started")

	_, err := c.js.Publish(testContext(t), "lockstep.local.control.17.resync", []byte("x"))
	require.NoError(t, err)
	require.NoError(t, receive(t, in.received).DoubleAck(testContext(t)))

	// Gone while it reads: it waits again.
	require.NoError(t, c.js.DeleteConsumer(testContext(t), "CONTROL", "watcher-17"))
	in.log.await(t, "pull reader waits")
	in.stop()
}

func TestPullReaderEndsWithItsConnection(t *testing.T) {
	t.Parallel()

	c := startCell(t)
	agent := c.agent(t, agentOne)
	reads := make(signals, 1000)
	part := &natsauth.PullReader{
		Conn: agent.Conn, Stream: "DESIRED", Consumer: "dispatcher-17", Handle: func(jetstream.Msg) {},
		Logger: slog.New(slog.NewTextHandler(reads, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	ended := make(chan error, 1)

	go func() { ended <- part.Run(context.Background()) }()

	reads.await(t, "pull reader started")
	agent.Close()
	require.ErrorIs(t, receive(t, ended), nats.ErrConnectionClosed)
}

func TestPullReaderFaults(t *testing.T) {
	t.Parallel()

	require.ErrorIs(t, (&natsauth.PullReader{}).Run(t.Context()), natsauth.ErrInvalidPullReader)

	c := startCell(t)
	agent := c.agent(t, agentOne)
	agent.Close()

	part := &natsauth.PullReader{
		Conn:     agent.Conn,
		Stream:   "DESIRED",
		Consumer: "dispatcher-17",
		Handle:   func(jetstream.Msg) {},
		Logger:   slog.New(slog.DiscardHandler),
	}
	require.ErrorIs(t, part.Run(testContext(t)), nats.ErrConnectionClosed)
}

// TestEmptyMessageEndsAResponse documents that the server takes a message without payload and headers as the end of
// a pull response, so agents must not receive such messages. If the test fails, the server has been fixed.
func TestEmptyMessageEndsAResponse(t *testing.T) {
	t.Parallel()

	c := startCell(t)
	consumer, err := c.agent(t, agentOne).jetStream(t).Consumer(testContext(t), "DESIRED", "dispatcher-17")
	require.NoError(t, err)

	for i, body := range []string{"x", "", "x"} {
		_, err = c.js.Publish(testContext(t), fmt.Sprintf("lockstep.local.desired.17.%d", i), []byte(body))
		require.NoError(t, err)
	}

	batch, err := consumer.Fetch(3, jetstream.FetchMaxWait(5*time.Second))
	require.NoError(t, err)

	arrived := 0
	for range batch.Messages() {
		arrived++
	}

	require.Equal(t, 2, arrived)
}

// TestPullReaderDropsMessagesOfOtherConsumers lets another agent publish to the inbox of a request, which it could
// not guess.
func TestPullReaderDropsMessagesOfOtherConsumers(t *testing.T) {
	t.Parallel()

	c := startCell(t)
	agent := c.agent(t, agentOne)
	in := startPullReader(t, agent.Conn, "CONTROL", "watcher-17", 50*time.Second)
	in.log.await(t, "pull reader started")

	_, err := c.js.Publish(testContext(t), "lockstep.local.control.18.config", []byte("another's"))
	require.NoError(t, err)

	other := c.agent(t, agentTwo)
	inbox := leakedInbox(t, c, "17")
	require.NoError(t, other.PublishRequest("$JS.API.CONSUMER.MSG.NEXT.CONTROL.watcher-18", inbox, []byte(`{"batch":1}`)))
	in.log.await(t, "pull reader dropped")

	_, err = c.js.Publish(testContext(t), "lockstep.local.control.17.config", []byte("its own"))
	require.NoError(t, err)
	require.Equal(t, "its own", string(receive(t, in.received).Data()))
	in.stop()
}

// leakedInbox is where a user's connection awaits the answer to a pull request, as only the system
// account can see.
func leakedInbox(t *testing.T, c *cell, user string) string {
	t.Helper()

	var found string

	require.Eventually(t, func() bool {
		list, err := c.server.Connz(
			&server.ConnzOptions{Username: true, User: user, Account: string(natsauth.AccountAgents), Subscriptions: true},
		)
		require.NoError(t, err)

		for _, conn := range list.Conns {
			for _, subject := range conn.Subs {
				// The one with a wildcard is for answers to requests of another kind.
				if strings.HasPrefix(subject, "_INBOX_"+user+".") && !strings.Contains(subject, "*") {
					found = subject
				}
			}
		}

		return found != ""
	}, timeout, time.Millisecond)

	return found
}
