package e2e_test

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

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/tools/stack"
)

// connectAgent connects with an agent's real credentials, as anybody who has its file can.
func connectAgent(c natsauth.AgentCredentials, options ...nats.Option) (*nats.Conn, error) {
	user := strconv.FormatInt(c.AgentID, 10)
	base := []nats.Option{
		nats.UserInfo(user, c.Token), nats.CustomInboxPrefix(natsauth.InboxPrefix(user)), nats.NoReconnect(), nats.Timeout(patience),
	}
	return nats.Connect(c.ServerURLs[0], append(base, options...)...)
}

// attacker is an agent that means harm, with its own real credentials.
type attacker struct {
	t    *testing.T
	s    *system
	conn *nats.Conn
	js   jetstream.JetStream
	// own are its credentials, and workspace one that really is its own.
	own       natsauth.AgentCredentials
	workspace string
	// complaints are what its connection's error handler hears.
	complaints chan error
	// aside is a subject that the server may complain of in place of the one published on: where a trace was to go.
	aside string
	// loot is where it has answers sent to that it must not get.
	loot *nats.Subscription
}

// intrude connects an agent that means harm.
func (s *system) intrude(own natsauth.AgentCredentials, workspace string) *attacker {
	s.t.Helper()
	i := &attacker{t: s.t, s: s, own: own, workspace: workspace, complaints: make(chan error, 100)}
	var err error
	i.conn, err = connectAgent(own, nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { i.complaints <- err }))
	require.NoError(s.t, err)
	s.t.Cleanup(i.conn.Close)
	i.js, err = jetstream.New(i.conn)
	require.NoError(s.t, err)
	i.loot, err = i.conn.SubscribeSync(i.inbox("loot.>"))
	require.NoError(s.t, err)
	return i
}

func (i *attacker) inbox(rest string) string {
	return natsauth.InboxPrefix(strconv.FormatInt(i.own.AgentID, 10)) + "." + rest
}

// in is the intruder for a subtest.
func (i *attacker) in(t *testing.T) *attacker {
	t.Helper()
	here := *i
	here.t, here.s = t, i.s.in(t)
	return &here
}

// hears waits for the next complaint that the server makes.
func (i *attacker) hears(about string) {
	i.t.Helper()
	select {
	case complaint := <-i.complaints:
		require.ErrorIs(i.t, complaint, nats.ErrPermissionViolation, about)
		if !i.isAside(complaint) {
			require.ErrorContains(i.t, complaint, about)
		}
	case <-time.After(patience):
		require.FailNow(i.t, "nobody complains", about)
	}
}

func (i *attacker) isAside(complaint error) bool {
	return i.aside != "" && strings.Contains(complaint.Error(), strconv.Quote(i.aside))
}

func (i *attacker) flush() {
	i.t.Helper()
	require.NoError(i.t, i.conn.FlushTimeout(patience))
}

// refused publishes what the server must not take, and must complain of.
func (i *attacker) refused(subject string, data []byte, header nats.Header) {
	i.t.Helper()
	msg := &nats.Msg{Subject: subject, Reply: i.inbox("loot." + strconv.Itoa(len(subject))), Header: header, Data: data}
	require.NoError(i.t, i.conn.PublishMsg(msg), subject)
	i.flush()
	i.hears(fmt.Sprintf("%q", subject))
}

// published publishes what the server takes, since the subject is the intruder's own.
func (i *attacker) published(msg *nats.Msg) {
	i.t.Helper()
	require.NoError(i.t, i.conn.PublishMsg(msg), msg.Subject)
}

// deaf subscribes to what the server must not let it hear.
func (i *attacker) deaf(subject, queue string) {
	i.t.Helper()
	subscription, err := i.conn.QueueSubscribeSync(subject, queue)
	require.NoError(i.t, err)
	i.flush()
	i.hears(subject)
	require.NoError(i.t, subscription.Unsubscribe())
}

// settle returns when everything published before has had the effect that it will have: on each way across the border an honest exchange
// comes after it.
func (i *attacker) settle() {
	i.t.Helper()
	ctx := i.t.Context()
	_, err := i.js.Publish(ctx, stack.Cell.ObservedTick(i.own.AgentID), []byte("honest"))
	require.NoError(i.t, err)
	_, err = i.js.Publish(ctx, stack.Cell.Applied(i.own.AgentID, i.workspace), []byte("honest"))
	require.NoError(i.t, err)
	i.ask(stack.Cell.Secret(i.own.AgentID, i.workspace), []byte("{}"))
	for _, consumer := range topology.AgentConsumers(stack.Cell, i.own.AgentID) {
		_, err := i.js.Consumer(ctx, consumer.Stream, consumer.Config.Durable)
		require.NoError(i.t, err)
	}
	i.flush()
}

// ask asks until there is an answer: who asks too much at once is left without.
func (i *attacker) ask(subject string, data []byte) *nats.Msg {
	i.t.Helper()
	answer, err := backoff.Retry(i.t.Context(), func() (*nats.Msg, error) { return i.conn.Request(subject, data, askPause) },
		backoff.WithBackOff(backoff.NewConstantBackOff(retryPause)), backoff.WithMaxElapsedTime(patience))
	require.NoError(i.t, err, subject)
	return answer
}

// askPause is how long an answer is waited for before it is asked for again.
const askPause = 2 * time.Second

// hasNothing checks that the intruder has got no answer that it must not have, and that nothing was refused that nobody expected.
func (i *attacker) hasNothing() {
	i.t.Helper()
	pending, _, err := i.loot.Pending()
	require.NoError(i.t, err)
	if pending > 0 {
		msg, err := i.loot.NextMsg(time.Second)
		require.NoError(i.t, err)
		require.FailNow(i.t, "the intruder has got an answer", "%s: %v %s", msg.Subject, msg.Header, msg.Data)
	}
	for len(i.complaints) > 0 {
		if complaint := <-i.complaints; !i.isAside(complaint) {
			require.NoError(i.t, complaint, "nobody expected this")
		}
	}
	require.True(i.t, i.conn.IsConnected())
}

// ear hears what comes to somebody's inboxes. Its owner's name is known to everybody, the rest of a real inbox to nobody.
type ear struct {
	mu    sync.Mutex
	heard []string
}

// guessed is the part of inboxes that the intruder guesses, and right: real ones end in 22 random characters.
const guessed = "guessed"

func listen(t *testing.T, conn *nats.Conn, subject string) *ear {
	t.Helper()
	e := &ear{}
	_, err := conn.Subscribe(subject, func(msg *nats.Msg) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.heard = append(e.heard, fmt.Sprintf("%s: %v %s", msg.Subject, msg.Header, msg.Data))
	})
	require.NoError(t, err)
	require.NoError(t, conn.FlushTimeout(patience))
	return e
}

func (e *ear) all() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string{}, e.heard...)
}
