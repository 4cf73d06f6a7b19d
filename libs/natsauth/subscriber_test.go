package natsauth_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsauth/natsadmin"
	"lockstep.internal/libs/topology"
)

// reader connects as a subscriber, or under the name of its listener.
func (c *cell) reader(t *testing.T, user string, options ...nats.Option) *client {
	t.Helper()

	name, _ := natsauth.ParseSubscriberUser(user)
	a := newClient()
	a.Conn = dial(t, c.server.ClientURL(), append([]nats.Option{
		nats.UserInfo(user, name+"-token"),
		nats.CustomInboxPrefix(natsauth.InboxPrefix(name)),
		nats.ReconnectWait(20 * time.Millisecond),
		nats.ReconnectJitter(0, 0),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { a.recordError(err) }),
	}, options...)...)
	drain(a.complaints) // of failed attempts

	return a
}

// publishFact publishes a fact.
func (c *cell) publishFact(t *testing.T, namespace, fact string) {
	t.Helper()

	_, err := c.js.Publish(
		testContext(t), cellName.Deploy("c1", namespace, "deployment", "web", fact), []byte(namespace+"/"+fact),
		jetstream.WithMsgID(namespace+fact),
	)
	require.NoError(t, err)
}

// startDeploys starts a cell in which the test publishes facts, as the service deploys does.
func startDeploys(t *testing.T) *cell {
	t.Helper()

	c := startCell(t)
	conn := c.static(t, natsadmin.Name)
	js, err := jetstream.New(conn)
	require.NoError(t, err)

	c.js = js

	return c
}

func TestSubscriberReadsMissedMessages(t *testing.T) {
	t.Parallel()

	c := startDeploys(t)
	ctx := testContext(t)

	for i := range 20 {
		c.publishFact(t, "shop", fmt.Sprintf("progressed-%d", i))
		c.publishFact(t, "other", fmt.Sprintf("progressed-%d", i))
	}

	for life := range 4 {
		reader := c.reader(t, "shop")
		js := reader.jetStream(t)
		consumer, err := js.Consumer(ctx, topology.StreamDeploys, topology.SubscriberConsumer("shop"))
		require.NoError(t, err)

		for i := range 5 {
			message, err := consumer.Next(jetstream.FetchMaxWait(timeout))
			require.NoError(t, err)
			require.Equal(
				t, fmt.Sprintf("lockstep.local.deploy.c1.shop.deployment.web.progressed-%d", life*5+i), message.Subject(),
			)
			require.NoError(t, message.DoubleAck(ctx))
		}

		require.Empty(t, reader.complaints)
		reader.Close()
	}
}

func TestSubscriberReadsLiveMessages(t *testing.T) {
	t.Parallel()

	c := startDeploys(t)
	reader := c.reader(t, "reader")
	consumer, err := reader.jetStream(
		t,
	).Consumer(testContext(t), topology.StreamDeploys, topology.SubscriberConsumer("reader"))
	require.NoError(t, err)

	received := make(chan jetstream.Msg, 10)
	consuming, err := consumer.Consume(func(m jetstream.Msg) { received <- m })
	require.NoError(t, err)

	for i := range 3 {
		c.publishFact(t, "shop", fmt.Sprint(i))
		message := receive(t, received)
		require.Equal(t, fmt.Sprintf("shop/%d", i), string(message.Data()))
		require.NoError(t, message.DoubleAck(testContext(t)))
	}

	consuming.Stop()
	receive(t, consuming.Closed())
	require.Empty(t, reader.complaints)
}

func TestListenerReceivesStoredMessagesOfItsFilter(t *testing.T) {
	t.Parallel()

	c := startDeploys(t)
	all, shop := c.reader(t, "reader.live"), c.reader(t, "shop.live")
	subscribe := func(from *client, subject string) *nats.Subscription {
		s, err := from.SubscribeSync(subject)
		require.NoError(t, err)
		require.NoError(t, from.FlushWithContext(testContext(t)))

		return s
	}
	everything := subscribe(all, "lockstep.local.deploy.>")
	narrower := subscribe(all, "lockstep.local.deploy.*.*.*.*.completed")
	shops := subscribe(shop, "lockstep.local.deploy.*.shop.>")

	c.publishFact(t, "other", "started")
	c.publishFact(t, "shop", "started")
	// Rejected and duplicate messages are not delivered.
	_, err := c.js.Publish(
		testContext(t), "lockstep.local.deploy.c1.shop.deployment.web.twice", nil,
		jetstream.WithExpectLastSequencePerSubject(99),
	)
	require.Error(t, err)
	c.publishFact(t, "shop", "started")
	c.publishFact(t, "shop", "completed")

	for subscription, facts := range map[*nats.Subscription][]string{
		everything: {"other/started", "shop/started", "shop/completed"},
		narrower:   {"shop/completed"},
		shops:      {"shop/started", "shop/completed"},
	} {
		for _, fact := range facts {
			message, err := subscription.NextMsg(timeout)
			require.NoError(t, err)
			require.Equal(t, fact, string(message.Data))
			namespace, name, _ := strings.Cut(fact, "/")
			require.Equal(t, "lockstep.local.deploy.c1."+namespace+".deployment.web."+name, message.Subject)
			require.NotEmpty(t, message.Header.Get("Nats-Sequence"),
				"the stream sequence, so that the listener can detect missed messages")
			require.Empty(t, message.Reply, "no reply subject")
		}

		n, _, err := subscription.Pending()
		require.NoError(t, err)
		require.Zero(t, n)
	}

	for _, subject := range []string{
		"lockstep.local.deploy.>", "lockstep.local.deploy.*.other.>", "lockstep.local.deploy.*.*.>",
	} {
		_, err := shop.SubscribeSync(subject)
		require.NoError(t, err)
		require.NoError(t, shop.FlushWithContext(testContext(t)))
		require.ErrorContains(t, receive(t, shop.complaints), "Permissions Violation", subject)
	}

	require.Empty(t, all.complaints)
}

func TestSubscriberReadsTheJobsOfItsProject(t *testing.T) {
	t.Parallel()

	c := startDeploys(t)

	for name, given := range map[string]struct {
		family, stream string
		subject        func(project, job int64, event string) string
	}{
		"jobs":       {topology.FamilyJob, topology.StreamJobs, cellName.Job},
		"admissions": {topology.FamilyAdmission, topology.StreamAdmission, cellName.Admission},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			ctx := testContext(t)
			live := c.reader(t, name+".live")
			subscription, err := live.SubscribeSync(cellName.Prefix(given.family) + ".17.>")
			require.NoError(t, err)
			require.NoError(t, live.FlushWithContext(ctx))

			for project, event := range map[int64]string{18: "first", 17: "second"} {
				_, err := c.js.Publish(ctx, given.subject(project, 9, event), []byte(event))
				require.NoError(t, err)
			}

			reader := c.reader(t, name)
			consumer, err := reader.jetStream(t).Consumer(ctx, given.stream, topology.SubscriberConsumer(name))
			require.NoError(t, err)
			message, err := consumer.Next(jetstream.FetchMaxWait(timeout))
			require.NoError(t, err)
			require.Equal(t, given.subject(17, 9, "second"), message.Subject())
			require.NoError(t, message.DoubleAck(ctx))

			info, err := consumer.Info(ctx)
			require.NoError(t, err)
			require.Zero(t, info.NumPending, "events of other projects")

			received, err := subscription.NextMsg(timeout)
			require.NoError(t, err)
			require.Equal(t, given.subject(17, 9, "second"), received.Subject)

			for _, other := range []string{
				cellName.All(given.family), cellName.Prefix(given.family) + ".18.>", "lockstep.local.deploy.>",
			} {
				_, err := live.SubscribeSync(other)
				require.NoError(t, err)
				require.NoError(t, live.FlushWithContext(ctx))
				require.ErrorContains(t, receive(t, live.complaints), "Permissions Violation", other)
			}

			require.Empty(t, reader.complaints)
		})
	}
}

func TestReadersAreLimited(t *testing.T) {
	t.Parallel()

	c := startDeploys(t)
	reader := c.reader(t, "reader")

	for i := range 65 {
		_, err := reader.SubscribeSync(fmt.Sprintf("_INBOX_reader.%d", i))
		require.NoError(t, err)
	}

	require.NoError(t, reader.FlushWithContext(testContext(t)))
	require.ErrorContains(t, receive(t, reader.complaints), "maximum subscriptions")
	require.NoError(
		t,
		reader.PublishRequest("$JS.API.CONSUMER.INFO.DEPLOYS.subscriber-reader", "_INBOX_reader.x", make([]byte, 8<<10)),
	)
	require.NoError(t, reader.FlushWithContext(testContext(t)))
	require.ErrorIs(
		t,
		reader.PublishRequest("$JS.API.CONSUMER.INFO.DEPLOYS.subscriber-reader", "_INBOX_reader.x", make([]byte, 8<<10+1)),
		nats.ErrMaxPayload,
	)
}

func TestRevokedReaderIsDisconnectedWithinASecond(t *testing.T) {
	t.Parallel()

	c := startDeploys(t)
	disconnector := &natsauth.Disconnector{
		Conn: c.static(t, natsauth.PrincipalSystem), ConnectTimeout: 100 * time.Millisecond,
	}
	cut := make(chan string, 10)

	for _, user := range []string{"reader", "reader.live"} {
		c.reader(t, user, nats.DisconnectErrHandler(func(*nats.Conn, error) { cut <- user }))
	}

	stays := c.reader(t, "shop")
	stay := c.agent(t, agentOne)

	c.directory.revokeReader("reader")

	began := time.Now()

	for _, principal := range []natsauth.Principal{
		{Kind: natsauth.KindSubscriber, Name: "reader", Filter: "lockstep.local.deploy.>"},
		{Kind: natsauth.KindListener, Name: "reader", Filter: "lockstep.local.deploy.>"},
	} {
		kicked, err := disconnector.DisconnectOnce(context.Background(), principal)
		require.NoError(t, err)
		require.Equal(t, 1, kicked)
	}

	require.ElementsMatch(t, []string{"reader", "reader.live"}, []string{receive(t, cut), receive(t, cut)})
	require.Less(t, time.Since(began), timeout/4, "a large margin for a busy machine")
	require.True(t, stays.IsConnected())
	require.True(t, stay.IsConnected())
}
