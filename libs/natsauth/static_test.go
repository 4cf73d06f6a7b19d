package natsauth_test

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
)

func TestOperatorReadsAndRetries(t *testing.T) {
	t.Parallel()

	c := startCell(t)
	c.fillStreams(t)

	conn := c.static(t, natsauth.PrincipalOperator)
	js, err := jetstream.New(conn)
	require.NoError(t, err)

	ctx := testContext(t)
	stream, err := js.Stream(ctx, "DESIRED")
	require.NoError(t, err)
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	require.NoError(t, err)
	message, err := consumer.Next(jetstream.FetchMaxWait(timeout))
	require.NoError(t, err)
	require.Contains(t, message.Subject(), ".desired.")

	plain, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{ReplayPolicy: jetstream.ReplayOriginalPolicy})
	require.NoError(t, err)
	message, err = plain.Next(jetstream.FetchMaxWait(timeout))
	require.NoError(t, err)
	require.NoError(t, message.DoubleAck(ctx))
	require.NoError(t, stream.DeleteConsumer(ctx, plain.CachedInfo().Name))

	ack, err := js.Publish(ctx, "lockstep.local.dead.state.observed.17.x", nil)
	require.NoError(t, err)
	dead, err := js.Stream(ctx, "DEAD")
	require.NoError(t, err)
	require.NoError(t, dead.DeleteMsg(ctx, ack.Sequence))
}

// TestStaticPrincipalsCannotExceedTheirPermissions tries, as each principal, what only others may do.
func TestStaticPrincipalsCannotExceedTheirPermissions(t *testing.T) {
	t.Parallel()

	c := startCell(t)
	c.fillStreams(t)
	before := c.foreign(t)

	for name, forbidden := range map[string]struct{ publish, subscribe []string }{
		natsauth.PrincipalState: {
			publish: []string{
				"lockstep.other.desired.18.w", "lockstep.local.audit.18.requests", "lockstep.local.deploy.c.n.k.w.started",
				"lockstep.local.dead.dispatcher.x", "lockstep.local.agent.18.connected",
				"$JS.API.STREAM.DELETE.DESIRED", "$JS.API.STREAM.PURGE.WORKSPACES", "$JS.API.STREAM.PURGE.OBSERVED",
				"$JS.API.STREAM.MSG.DELETE.DESIRED", "$JS.API.STREAM.RESTORE.DESIRED", "$SYS.REQ.SERVER.PING", "$SYS.REQ.USER.AUTH",
			},
			subscribe: []string{">", "_INBOX.>", "_INBOX_operator.>", "lockstep.>", "$SYS.>", "$JS.ACK.>"},
		},
		natsauth.PrincipalDeploys: {
			publish: []string{
				"lockstep.local.observed.18.x", "lockstep.local.observed.18.workload.deployment.ns.name",
				"lockstep.other.observed.cluster.uid.released", "lockstep.local.desired.18.w",
				"lockstep.local.directory.agent.18", "lockstep.local.dead.state.x", "$JS.API.STREAM.PURGE.OBSERVED",
				"$JS.API.STREAM.CREATE.EVIL",
			},
			subscribe: []string{">", "_INBOX_state.>", "lockstep.>"},
		},
		natsauth.PrincipalRelay: {
			publish: []string{
				"lockstep.local.observed.18.x", "lockstep.local.desired.18.w", "lockstep.local.control.18.config",
				"lockstep.local.directory.agent.18", "lockstep.other.agent.18.connected",
				"lockstep.local.secret.18.w", "lockstep.local.dead.relay.x", "$KV.OTHERS.x", "$JS.API.STREAM.CREATE.EVIL",
				"$JS.API.STREAM.UPDATE.CONTROL",
				"$JS.API.STREAM.PURGE.KV_RELAYS",
				"$JS.API.STREAM.DELETE.KV_RELAYS", "$JS.API.STREAM.MSG.DELETE.KV_RELAYS", "$JS.API.STREAM.MSG.GET.DESIRED",
				"$JS.API.STREAM.INFO.AGENTS", "$JS.API.DIRECT.GET.OBSERVED",
				"$JS.API.CONSUMER.CREATE.DESIRED.evil", "$JS.API.CONSUMER.RESET.CONTROL.dispatcher-18",
				"$JS.API.CONSUMER.PAUSE.CONTROL.dispatcher-18", "$JS.ACK.CONTROL.dispatcher-18.1.1.1.1.1",
			},
			subscribe: []string{">", "_INBOX_state.>", "lockstep.>", "lockstep.local.control.>", "$KV.RELAYS.>"},
		},
		natsauth.PrincipalOperator: {
			publish: []string{
				"$JS.API.STREAM.CREATE.EVIL", "$JS.API.STREAM.UPDATE.DESIRED", "$JS.API.STREAM.DELETE.DESIRED",
				"$JS.API.STREAM.PURGE.DESIRED",
				"$JS.API.STREAM.MSG.DELETE.DESIRED", "$JS.API.CONSUMER.RESET.DESIRED.dispatcher-18", "lockstep.local.secret.18.w",
				"$JS.API.CONSUMER.PAUSE.DESIRED.dispatcher-18", "$SYS.REQ.SERVER.PING.CONNZ",
			},
			subscribe: []string{">", "_INBOX_state.>", "lockstep.local.secret.*.*", "lockstep.local.secret.>"},
		},
		natsauth.PrincipalCallout: {
			publish: []string{
				"$SYS.REQ.USER.AUTH", "lockstep.local.observed.18.x", "_INBOX.x", "$JS.API.INFO", "$SYS._INBOX.x",
			},
			subscribe: []string{">", "$SYS.REQ.USER.AUTH", "$SYS.>", "lockstep.>"},
		},
		natsauth.PrincipalSystem: {
			publish: []string{
				"$SYS.REQ.SERVER.x.RELOAD", "$SYS.REQ.SERVER.x.VARZ", "$SYS.REQ.CLAIMS.UPDATE",
				"$JS.API.ACCOUNT.PURGE.CONTROL", "lockstep.local.desired.18.w",
			},
			subscribe: []string{">", "$SYS.>", "$SYS.ACCOUNT.>"},
		},
	} {
		a := &client{complaints: make(chan error, 10)}
		a.Conn = c.static(t, name,
			nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { a.recordError(err) }))

		for _, subject := range forbidden.publish {
			require.NoError(t, a.PublishRequest(subject, natsauth.InboxPrefix(name)+".x", nil))
			require.NoError(t, a.Flush())
			require.ErrorContains(t, receive(t, a.complaints), "Permissions Violation", name+" "+subject)
		}

		for _, subject := range forbidden.subscribe {
			subscription, err := a.SubscribeSync(subject)
			require.NoError(t, err)
			require.NoError(t, a.Flush())
			// An allowed wildcard with a denied part subscribes to the rest; only all of it denied
			// is an error.
			require.ErrorContains(t, receive(t, a.complaints), "Permissions Violation", name+" "+subject)
			require.NoError(t, subscription.Unsubscribe())
		}

		require.Equal(t, before, c.foreign(t))
	}
}

func TestRelayStoresInMemoryOnly(t *testing.T) {
	t.Parallel()

	c := startCell(t)
	js, err := jetstream.New(c.static(t, natsauth.PrincipalRelay))
	require.NoError(t, err)

	config := jetstream.StreamConfig{Name: topology.StreamRelays, Subjects: []string{"$KV.RELAYS.>"}}
	_, err = js.CreateStream(testContext(t), config)
	require.ErrorContains(t, err, "insufficient storage")

	config.Storage, config.MaxBytes = jetstream.MemoryStorage, 1<<30
	_, err = js.CreateStream(testContext(t), config)
	require.ErrorContains(t, err, "insufficient memory")
}
