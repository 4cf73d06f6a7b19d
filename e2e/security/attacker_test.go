package security_test

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/tools/stack"
	"lockstep.internal/tools/testkit/natstest"
)

// connectAgent connects with an agent's real credentials, as anyone with the file can.
func connectAgent(c natsauth.AgentCredentials, options ...nats.Option) (*nats.Conn, error) {
	user := strconv.FormatInt(c.AgentID, 10)
	base := []nats.Option{
		nats.UserInfo(user, c.Token),
		nats.CustomInboxPrefix(natsauth.InboxPrefix(user)),
		nats.NoReconnect(),
		nats.Timeout(fixture.Timeout),
	}
	return nats.Connect(c.ServerURLs[0], append(base, options...)...)
}

// attacker is an agent with real credentials that tries to reach data of others.
type attacker struct {
	t    testing.TB
	s    *fixture.System
	conn *nats.Conn
	js   jetstream.JetStream
	// own are its credentials; workspace is the id of a workspace of its own.
	own       natsauth.AgentCredentials
	workspace string
	// violations receives the errors that the server sends to its connection.
	violations chan error
	// traceSubject is the subject of a message trace: a permission violation may name it instead of the
	// message's subject.
	traceSubject string
	// stolen receives answers that the attacker must not get.
	stolen *nats.Subscription
}

// newAttacker connects an attacker.
func newAttacker(s *fixture.System, own natsauth.AgentCredentials, workspace string) *attacker {
	s.T.Helper()
	i := &attacker{t: s.T, s: s, own: own, workspace: workspace, violations: make(chan error, 100)}
	var err error
	i.conn, err = connectAgent(own,
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { i.violations <- err }))
	require.NoError(s.T, err)
	s.T.Cleanup(i.conn.Close)
	i.js = natstest.Open(s.T, i.conn)
	i.stolen, err = i.conn.SubscribeSync(i.inbox("stolen.>"))
	require.NoError(s.T, err)
	return i
}

func (i *attacker) inbox(rest string) string {
	return natsauth.InboxPrefix(strconv.FormatInt(i.own.AgentID, 10)) + "." + rest
}

// in returns the attacker for a subtest.
func (i *attacker) in(t testing.TB) *attacker {
	t.Helper()
	here := *i
	here.t, here.s = t, i.s.In(t)
	return &here
}

// awaitViolation waits for the next permission violation and checks what it is about.
func (i *attacker) awaitViolation(about string) {
	i.t.Helper()
	select {
	case violation := <-i.violations:
		require.ErrorIs(i.t, violation, nats.ErrPermissionViolation, about)
		if !i.isTraceSubject(violation) {
			require.ErrorContains(i.t, violation, about)
		}
	case <-time.After(fixture.Timeout):
		require.FailNow(i.t, "the server reports no permission violation", about)
	}
}

func (i *attacker) isTraceSubject(violation error) bool {
	return i.traceSubject != "" && strings.Contains(violation.Error(), strconv.Quote(i.traceSubject))
}

func (i *attacker) flush() {
	i.t.Helper()
	require.NoError(i.t, i.conn.FlushTimeout(fixture.Timeout))
}

// publishDenied publishes a message that the server must refuse with a permission violation.
func (i *attacker) publishDenied(subject string, data []byte, header nats.Header) {
	i.t.Helper()
	msg := &nats.Msg{Subject: subject, Reply: i.inbox("stolen." + strconv.Itoa(len(subject))), Header: header, Data: data}
	require.NoError(i.t, i.conn.PublishMsg(msg), subject)
	i.flush()
	i.awaitViolation(fmt.Sprintf("%q", subject))
}

// publish publishes a message on a subject of the attacker's own, which the server accepts.
func (i *attacker) publish(msg *nats.Msg) {
	i.t.Helper()
	require.NoError(i.t, i.conn.PublishMsg(msg), msg.Subject)
}

// subscribeDenied subscribes to a subject that the server must refuse.
func (i *attacker) subscribeDenied(subject, queue string) {
	i.t.Helper()
	subscription, err := i.conn.QueueSubscribeSync(subject, queue)
	require.NoError(i.t, err)
	i.flush()
	i.awaitViolation(subject)
	require.NoError(i.t, subscription.Unsubscribe())
}

// awaitSettled returns when everything published before has taken effect: it sends a permitted request on each
// path and waits for the reply.
func (i *attacker) awaitSettled() {
	i.t.Helper()
	ctx := i.t.Context()
	_, err := i.js.Publish(ctx, stack.Cell.ObservedTick(i.own.AgentID), []byte("honest"))
	require.NoError(i.t, err)
	_, err = i.js.Publish(ctx, stack.Cell.Applied(i.own.AgentID, i.workspace), []byte("honest"))
	require.NoError(i.t, err)
	i.request(stack.Cell.Secret(i.own.AgentID, i.workspace), []byte("{}"))
	for _, consumer := range topology.AgentConsumers(stack.Cell, i.own.AgentID) {
		_, err := i.js.Consumer(ctx, consumer.Stream, consumer.Config.Durable)
		require.NoError(i.t, err)
	}
	i.flush()
}

// request repeats a request until it is answered: a caller with too many requests gets no answer.
func (i *attacker) request(subject string, data []byte) *nats.Msg {
	i.t.Helper()
	answer, err := backoff.Retry(
		i.t.Context(),
		func() (*nats.Msg, error) { return i.conn.Request(subject, data, requestRetry) },
		backoff.WithBackOff(backoff.NewConstantBackOff(fixture.RetryPause)),
		backoff.WithMaxElapsedTime(fixture.Timeout),
	)
	require.NoError(i.t, err, subject)
	return answer
}

// requestRetry is how long a request waits for its answer before it is repeated.
const requestRetry = 2 * time.Second

// requireNothingReceived checks that the attacker received nothing it must not get, and that
// nothing unexpected was refused.
func (i *attacker) requireNothingReceived() {
	i.t.Helper()
	pending, _, err := i.stolen.Pending()
	require.NoError(i.t, err)
	if pending > 0 {
		msg, err := i.stolen.NextMsg(time.Second)
		require.NoError(i.t, err)
		require.FailNow(i.t, "the attacker has got an answer", "%s: %v %s", msg.Subject, msg.Header, msg.Data)
	}
	for len(i.violations) > 0 {
		if violation := <-i.violations; !i.isTraceSubject(violation) {
			require.NoError(i.t, violation, "an unexpected permission violation")
		}
	}
	require.True(i.t, i.conn.IsConnected())
}

// recorder records what arrives in inboxes. An attacker knows the prefix of an inbox, which has its owner's name,
// but not the random rest.
type recorder struct {
	mu       sync.Mutex
	received []string
}

// guessedInbox is the part of inbox names that the attacker guesses. Real ones end in 22 random
// characters.
const guessedInbox = "guessed"

func record(t testing.TB, conn *nats.Conn, subject string) *recorder {
	t.Helper()
	e := &recorder{}
	_, err := conn.Subscribe(subject, func(msg *nats.Msg) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.received = append(e.received, fmt.Sprintf("%s: %v %s", msg.Subject, msg.Header, msg.Data))
	})
	require.NoError(t, err)
	require.NoError(t, conn.FlushTimeout(fixture.Timeout))
	return e
}

func (e *recorder) all() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string{}, e.received...)
}
