package state_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/testkit/natstest"
)

const timeout = time.Minute

// deploys returns a function that publishes facts as the deploys service does.
func (b *fixture) deploys(t *testing.T) func(namespace, fact string) {
	t.Helper()
	js := natstest.Open(t, b.administrator(t))
	return func(namespace, fact string) {
		t.Helper()
		require.Eventually(t, func() bool {
			_, err := js.Publish(
				t.Context(),
				topology.Cell("local").Deploy("c1", namespace, "deployment", "web", fact),
				[]byte(fact),
			)
			return err == nil
		}, timeout, 10*time.Millisecond)
	}
}

// dial connects as a subscriber or its listener.
func dial(
	t *testing.T,
	made *statev1.CreateSubscriberResponse,
	user string,
	options ...nats.Option,
) (*nats.Conn, error) {
	t.Helper()
	conn, err := nats.Connect(
		made.GetNatsUrls()[0],
		append(
			[]nats.Option{
				nats.UserInfo(user, made.GetToken()),
				nats.CustomInboxPrefix(made.GetInboxPrefix()),
				nats.MaxReconnects(0),
				nats.Timeout(timeout),
			},
			options...)...)
	if err == nil {
		t.Cleanup(conn.Close)
	}
	return conn, err
}

// read gives the next fact of a subscriber's consumer.
func read(t *testing.T, conn *nats.Conn, s *statev1.Subscriber) string {
	t.Helper()
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	var consumer jetstream.Consumer
	require.Eventually(t, func() bool {
		consumer, err = js.Consumer(t.Context(), s.GetStream(), s.GetConsumer())
		return err == nil
	}, timeout, 10*time.Millisecond)
	m, err := consumer.Next(jetstream.FetchMaxWait(timeout))
	require.NoError(t, err)
	require.NoError(t, m.DoubleAck(t.Context()))
	return string(m.Data())
}

func TestSubscriberReadsEventsUntilRevoked(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	_, adas := admin.user(b, "ada")
	publish := b.deploys(t)
	publish("shop", "before")

	refused(t, errcode.PermissionDenied, adas.subscribers.CreateSubscriber, &statev1.CreateSubscriberRequest{Name: "ci"})
	refused(t, errcode.PermissionDenied, adas.subscribers.ListSubscribers, &statev1.ListSubscribersRequest{})
	for _, bad := range []*statev1.CreateSubscriberRequest{
		{},
		{Name: "No Name"},
		{Name: "ci.live"},
		{Name: "ci", Filter: "desired.>"},
		{Name: "ci", Filter: "deploy.x"},
		{Name: "ci", Filter: "job.web.>"},
	} {
		refused(t, errcode.InvalidArgument, admin.subscribers.CreateSubscriber, bad)
	}
	ci := call(
		t,
		admin.subscribers.CreateSubscriber,
		&statev1.CreateSubscriberRequest{Name: "ci", Filter: "deploy.*.shop.>"},
	)
	all := call(t, admin.subscribers.CreateSubscriber, &statev1.CreateSubscriberRequest{Name: "all", FromBeginning: true})
	require.Equal(t, "lockstep.local.deploy.*.shop.>", ci.GetSubscriber().GetFilter())
	require.Equal(t, "ci.live", ci.GetListener())
	refused(t, errcode.AlreadyExists, admin.subscribers.CreateSubscriber, &statev1.CreateSubscriberRequest{Name: "ci"})
	refused(
		t,
		errcode.PermissionDenied,
		adas.subscribers.RevokeSubscriber,
		&statev1.RevokeSubscriberRequest{Id: ci.GetSubscriber().GetId()},
	)

	cut := make(chan string, 10)
	watched := func(user string) nats.Option {
		return nats.ClosedHandler(func(*nats.Conn) { cut <- user })
	}
	reader, err := dial(t, ci, ci.GetUser(), watched("ci"))
	require.NoError(t, err)
	listener, err := dial(t, ci, ci.GetListener(), watched("ci.live"))
	require.NoError(t, err)
	live, err := listener.SubscribeSync(ci.GetSubscriber().GetFilter())
	require.NoError(t, err)
	require.NoError(t, listener.Flush())
	publish("other", "first")
	publish("shop", "second")
	received, err := live.NextMsg(timeout)
	require.NoError(t, err)
	require.Equal(t, "second", string(received.Data))
	require.Equal(t, "second", read(t, reader, ci.GetSubscriber()), "neither earlier facts nor those of another namespace")
	everything, err := dial(t, all, all.GetUser())
	require.NoError(t, err)
	require.Equal(t, "before", read(t, everything, all.GetSubscriber()))

	for _, s := range call(t, admin.subscribers.ListSubscribers, &statev1.ListSubscribersRequest{}).GetSubscribers() {
		require.Equal(t, map[string]uint64{"ci": 0, "all": 2}[s.GetName()], s.GetPending(), s.GetName())
		require.NotNil(t, s.Pending)
	}
	// Its token is no agent's, and another's token is not its own.
	for _, user := range []string{"all", "all.live", "17", "ci.live.live", ""} {
		_, err := dial(t, ci, user)
		require.ErrorIs(t, err, nats.ErrAuthorization, user)
	}

	began := time.Now()
	revoked := call(
		t,
		admin.subscribers.RevokeSubscriber,
		&statev1.RevokeSubscriberRequest{Id: ci.GetSubscriber().GetId()},
	).GetSubscriber()
	require.True(t, revoked.GetRevoked())
	for range 2 {
		select {
		case <-cut:
		case <-time.After(timeout):
			require.Fail(t, "a revoked subscriber is still connected")
		}
	}
	t.Logf("both connections were cut within %s", time.Since(began))
	for _, user := range []string{ci.GetUser(), ci.GetListener()} {
		_, err := dial(t, ci, user)
		require.ErrorIs(t, err, nats.ErrAuthorization)
	}
	require.False(t, b.hasSubscription(t, "ci"))
	require.True(t, everything.IsConnected())
	// The name can be used again. The new subscriber reads from its creation, and the revocation does not affect it.
	again := call(t, admin.subscribers.CreateSubscriber, &statev1.CreateSubscriberRequest{Name: "ci"})
	call(t, admin.subscribers.RevokeSubscriber, &statev1.RevokeSubscriberRequest{Id: ci.GetSubscriber().GetId()})
	require.True(t, b.hasSubscription(t, "ci"))
	publish("other", "third")
	// For a few seconds, connections with the name of the revoked subscriber are closed.
	require.Eventually(t, func() bool {
		conn, err := dial(t, again, again.GetUser())
		if err != nil {
			return false
		}
		defer conn.Close()
		js, err := jetstream.New(conn)
		if err != nil {
			return false
		}
		consumer, err := js.Consumer(t.Context(), topology.StreamDeploys, again.GetSubscriber().GetConsumer())
		if err != nil {
			return false
		}
		m, err := consumer.Next(jetstream.FetchMaxWait(time.Second))
		return err == nil && string(m.Data()) == "third"
	}, timeout, 10*time.Millisecond)
}

// hasSubscription reports whether the subscriber's consumer exists.
func (b *fixture) hasSubscription(t *testing.T, name string) bool {
	t.Helper()
	js := natstest.Open(t, b.administrator(t))
	_, err := js.Consumer(context.WithoutCancel(t.Context()), topology.StreamDeploys, topology.SubscriberConsumer(name))
	require.True(t, err == nil || errors.Is(err, jetstream.ErrConsumerNotFound), "%v", err)
	return err == nil
}

func TestSubscriberOfJobsReadsThoseOfItsProject(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	b.requireReadsItsProject(t, "job", topology.StreamJobs, topology.Cell("local").Job)
	b.requireReadsItsProject(t, "admission", topology.StreamAdmission, topology.Cell("local").Admission)
}

// requireReadsItsProject creates a subscriber to the events of one project, and revokes it.
func (b *fixture) requireReadsItsProject(
	t *testing.T, family, stream string, subject func(project, job int64, event string) string,
) {
	t.Helper()
	admin := b.as(t, b.admin)
	// Each has a name of its own: connections of a name are closed once more some seconds after its revocation.
	made := call(t, admin.subscribers.CreateSubscriber,
		&statev1.CreateSubscriberRequest{Name: family, Filter: family + ".17.>", FromBeginning: true})
	require.Equal(t, stream, made.GetSubscriber().GetStream())
	js := natstest.Open(t, b.administrator(t))
	for project, event := range map[int64]string{18: "created", 17: "finished"} {
		require.Eventually(t, func() bool {
			_, err := js.Publish(t.Context(), subject(project, 9, event), []byte(event))
			return err == nil
		}, timeout, 10*time.Millisecond)
	}
	conn, err := dial(t, made, made.GetUser())
	require.NoError(t, err)
	require.Equal(t, "finished", read(t, conn, made.GetSubscriber()))
	listed := call(t, admin.subscribers.ListSubscribers, &statev1.ListSubscribersRequest{}).GetSubscribers()
	require.Zero(t, listed[len(listed)-1].GetPending(), "events of other projects")
	call(t, admin.subscribers.RevokeSubscriber, &statev1.RevokeSubscriberRequest{Id: made.GetSubscriber().GetId()})
	_, err = js.Consumer(t.Context(), stream, made.GetSubscriber().GetConsumer())
	require.ErrorIs(t, err, jetstream.ErrConsumerNotFound)
}

func TestSubscribersSurviveARestoreOfNATS(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	publish := b.deploys(t)
	gone := call(t, admin.subscribers.CreateSubscriber, &statev1.CreateSubscriberRequest{Name: "gone"})
	require.Eventually(t, func() bool { return b.hasSubscription(t, "gone") }, timeout, 10*time.Millisecond)
	copied := filepath.Join(t.TempDir(), "copy")
	require.NoError(t, b.nats.Snapshot(copied))
	made := call(t, admin.subscribers.CreateSubscriber, &statev1.CreateSubscriberRequest{Name: "made"})
	// NATS was down during the snapshot. A revocation that cannot close connections fails and is repeated.
	require.Eventually(t, func() bool {
		_, err := admin.subscribers.RevokeSubscriber(
			t.Context(),
			connect.NewRequest(&statev1.RevokeSubscriberRequest{Id: gone.GetSubscriber().GetId()}),
		)
		require.True(t, err == nil || fault.CodeOf(err) == errcode.Unavailable, "%v", err)
		return err == nil
	}, timeout, 10*time.Millisecond)
	require.Eventually(
		t,
		func() bool { return b.hasSubscription(t, "made") && !b.hasSubscription(t, "gone") },
		timeout,
		10*time.Millisecond,
	)
	// The restore must lose an acknowledged message: otherwise the outbox cannot detect it.
	call(t, admin.directory.CreateUser, &statev1.CreateUserRequest{Username: "ada"})
	b.awaitAcknowledged(t)

	require.NoError(t, b.nats.Restore(copied))
	require.Eventually(
		t,
		func() bool { return b.hasSubscription(t, "made") && !b.hasSubscription(t, "gone") },
		timeout,
		10*time.Millisecond,
	)
	publish("shop", "after")
	// Logins succeed when the service has reconnected to answer them.
	var conn *nats.Conn
	require.Eventually(t, func() bool {
		var err error
		conn, err = dial(t, made, made.GetUser())
		return err == nil
	}, timeout, 10*time.Millisecond)
	require.Equal(t, "after", read(t, conn, made.GetSubscriber()))
}

func TestSubscriberCreatedWithoutNATSConnectsLater(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	b.nats.Down()
	made := call(t, b.as(t, b.admin).subscribers.CreateSubscriber, &statev1.CreateSubscriberRequest{Name: "ci"})
	require.NotEmpty(t, made.GetToken())
	require.NoError(t, b.nats.Restart())
	require.Eventually(t, func() bool { return b.hasSubscription(t, "ci") }, timeout, 10*time.Millisecond)
}
