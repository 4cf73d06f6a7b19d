package natsauth_test

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/topology"
)

func TestAgentPublishesItsOwnFacts(t *testing.T) {
	t.Parallel()

	c := startCell(t)
	agent := c.agent(t, agentOne)
	js := agent.jetStream(t)

	for _, subject := range []string{
		"observed.17.deployment.ws-17-x.x", "observed.17.workload.statefulset.shop.db", "observed.17.resync",
		"observed.17.tick", "observed.17.rejected", "observed.17.members", "applied.17.0198c2a4",
	} {
		message := nats.NewMsg("lockstep.local." + subject)
		message.Header.Set("ce-id", "one")
		ack, err := js.PublishMsg(testContext(t), message)
		require.NoError(t, err, subject)
		require.NotZero(t, ack.Sequence)
	}

	stored, err := c.js.Stream(testContext(t), "OBSERVED")
	require.NoError(t, err)
	message, err := stored.GetLastMsgForSubject(testContext(t), "lockstep.local.observed.17.resync")
	require.NoError(t, err)
	require.Equal(t, "one", message.Header.Get("ce-id"))
	require.Empty(t, message.Header.Get("Nats-Request-Info"), "the server must not add the client's identity")
	require.Empty(t, agent.complaints)
}

func TestAgentConsumesItsOwnStreams(t *testing.T) {
	t.Parallel()

	c := startCell(t)
	agent := c.agent(t, agentOne)
	js := agent.jetStream(t)
	ctx := testContext(t)

	const count = 300

	for _, family := range []string{"desired", "control"} {
		for i := range count {
			_, err := c.js.Publish(ctx, fmt.Sprintf("lockstep.local.%s.17.%d", family, i), []byte("x"))
			require.NoError(t, err)
		}
	}

	for _, pair := range topology.AgentConsumers(cellName, agentOne) {
		consumer, err := js.Consumer(ctx, pair.Stream, pair.Config.Durable)
		require.NoError(t, err)

		received := make(chan jetstream.Msg, 2*count)
		consuming, err := consumer.Consume(func(m jetstream.Msg) { received <- m }, jetstream.PullMaxMessages(10))
		require.NoError(t, err)

		for range count {
			// DoubleAck waits until the server has confirmed the acknowledgement.
			require.NoError(t, receive(t, received).DoubleAck(ctx))
		}

		consuming.Stop()
		receive(t, consuming.Closed())

		info, err := consumer.Info(ctx)
		require.NoError(t, err)
		require.Zero(t, info.NumAckPending)
		require.Zero(t, info.NumPending)
	}

	require.Empty(t, agent.complaints)
}

func TestAgentResetsItsOwnConsumer(t *testing.T) {
	t.Parallel()

	c := startCell(t)
	agent := c.agent(t, agentOne)
	js := agent.jetStream(t)
	ctx := testContext(t)

	_, err := c.js.Publish(ctx, "lockstep.local.desired.17.a", []byte("again"))
	require.NoError(t, err)

	for range 3 {
		_, err = js.ResetConsumerToSequence(ctx, "DESIRED", "dispatcher-17", 1)
		require.NoError(t, err)

		consumer, err := js.Consumer(ctx, "DESIRED", "dispatcher-17")
		require.NoError(t, err)

		message, err := consumer.Next(jetstream.FetchMaxWait(timeout))
		require.NoError(t, err)
		require.Equal(t, "again", string(message.Data()))
		require.NoError(t, message.DoubleAck(ctx))
	}

	require.Empty(t, agent.complaints)
}

func TestAgentRequestsSecrets(t *testing.T) {
	t.Parallel()

	c := startCell(t)
	agent := c.agent(t, agentOne)

	_, err := c.state.Subscribe("lockstep.local.secret.*.*", func(m *nats.Msg) {
		if err := m.Respond([]byte("sealed for " + m.Subject)); err != nil {
			t.Error(err)
		}
	})
	require.NoError(t, err)
	require.NoError(t, c.state.Flush())

	answer, err := agent.RequestWithContext(testContext(t), "lockstep.local.secret.17.w", nil)
	require.NoError(t, err)
	require.Equal(t, "sealed for lockstep.local.secret.17.w", string(answer.Data))
	require.Empty(t, agent.complaints)
}
