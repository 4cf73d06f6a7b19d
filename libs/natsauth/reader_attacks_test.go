package natsauth_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/topology"
)

// readerMay says what the subscriber "reader" may publish to, spelled out by hand from the
// contract.
func readerMay(subject string) bool {
	switch subject {
	case "$JS.API.CONSUMER.MSG.NEXT.DEPLOYS.subscriber-reader", "$JS.API.CONSUMER.INFO.DEPLOYS.subscriber-reader":
		return true
	default:
		return strings.HasPrefix(subject, "$JS.ACK.DEPLOYS.subscriber-reader.")
	}
}

// attackSubjects returns each subject that an external user may try.
func attackSubjects() []string {
	subjects := append(factSubjects("18"), serverSubjects()...)
	subjects = append(subjects, wildcardSubjects()...)
	subjects = append(subjects, apiSubjects("subscriber-shop")...)

	for _, consumer := range []string{
		"subscriber-reader", "subscriber-", "subscriber-reader.live", "reader", "dispatcher-18",
	} {
		for _, subject := range apiSubjects(consumer) {
			if strings.Contains(subject, topology.StreamDeploys) || strings.Contains(subject, topology.StreamJobs) ||
				strings.Contains(subject, topology.StreamAdmission) || strings.Contains(subject, topology.StreamDesired) {
				subjects = append(subjects, subject)
			}
		}
	}

	subjects = append(
		subjects, "lockstep.local.deploy.c1.shop.deployment.web.completed",
		"lockstep.local.deploy.c1.shop.deployment.web.forged",
		"lockstep.local.deploy_live.c1.shop.deployment.web.completed", "lockstep.local.deploy.x", "lockstep.local.deploy",
		"lockstep.local.job.17.9.finished", "lockstep.local.job_live.17.9.finished", "lockstep.local.job.>",
		"lockstep.local.admission.17.9.decided", "lockstep.local.admission_live.17.9.decided", "lockstep.local.admission.>",
		"_INBOX_shop.x", "_INBOX_reader", "_INBOX_reader.x", "_INBOX_reader.live.x",
	)
	slices.Sort(subjects)

	return slices.Compact(subjects)
}

// requireDenied checks that the server denies every subject. It sends many at a time, because each answer takes a
// while on a slow machine.
func (a *client) requireDenied(t *testing.T, subjects []string, try func(subject string)) {
	t.Helper()

	for tried := range slices.Chunk(subjects, 100) {
		for _, subject := range tried {
			try(subject)
		}

		require.NoError(t, a.FlushWithContext(testContext(t)))

		var complaints strings.Builder
		for range tried {
			err := receive(t, a.complaints)
			require.ErrorContains(t, err, "ermissions Violation")
			complaints.WriteString(err.Error() + "\n")
		}

		for _, subject := range tried {
			require.Contains(t, strings.ToLower(complaints.String()), strings.ToLower(`"`+subject+`"`))
		}
	}
}

// untouched is everything stored but the reader's own consumer.
func (c *cell) untouched(t *testing.T) map[string]any {
	t.Helper()

	whole := *c

	var err error

	whole.js, err = jetstream.New(c.state)
	require.NoError(t, err)

	return whole.stored(
		t, func(string) bool { return false }, func(_, consumer string) bool { return consumer == "subscriber-reader" },
	)
}

func TestReadersMayPublishNothingElse(t *testing.T) {
	t.Parallel()

	c := startDeploys(t)
	c.publishFact(t, "shop", "started")

	before := c.untouched(t)

	for user, may := range map[string]func(string) bool{
		"reader":      readerMay,
		"reader.live": func(string) bool { return false },
	} {
		reader := c.reader(t, user)
		forbidden := slices.DeleteFunc(attackSubjects(), may)
		require.Greater(t, len(forbidden), 500)
		reader.requireDenied(t, forbidden, func(subject string) {
			require.NoError(t, reader.PublishRequest(subject, "_INBOX_reader.answer", []byte("{}")))
		})
		require.Equal(t, before, c.untouched(t))
		require.True(t, reader.IsConnected())
	}
}

func TestReadersMaySubscribeToNothingElse(t *testing.T) {
	t.Parallel()

	c := startDeploys(t)

	for user, own := range map[string]string{"reader": "_INBOX_reader.", "reader.live": "lockstep.local.deploy."} {
		forbidden := slices.DeleteFunc(attackSubjects(), func(subject string) bool { return strings.HasPrefix(subject, own) })

		for _, queue := range []string{"", "q"} {
			reader := c.reader(t, user)
			reader.requireDenied(t, forbidden, func(subject string) {
				require.NoError(t, reader.trySubscribe(subject, queue))
			})
			reader.Close()
		}
	}
}

// TestReaderCannotRedirectResponses sends requests with a reply subject that the reader may not publish to:
// subjects of facts, of streams, and inboxes of others.
func TestReaderCannotRedirectResponses(t *testing.T) {
	t.Parallel()

	c := startDeploys(t)

	for i := range 50 {
		c.publishFact(t, "shop", fmt.Sprint(i))
	}

	listener, other, agent := c.reader(t, "shop.live"), c.reader(t, "shop"), c.agent(t, agentOne)

	var ears []*nats.Subscription

	for from, subject := range map[*client]string{
		listener: "lockstep.local.deploy.*.shop.>",
		other:    "_INBOX_shop.>",
		agent:    "_INBOX_17.>",
	} {
		s, err := from.SubscribeSync(subject)
		require.NoError(t, err)
		require.NoError(t, from.FlushWithContext(testContext(t)))

		ears = append(ears, s)
	}

	before := c.untouched(t)
	reader := c.reader(t, "reader")
	consumer, err := reader.jetStream(t).Consumer(testContext(t), topology.StreamDeploys, "subscriber-reader")
	require.NoError(t, err)

	// What agents reach in their account is no inbox of this one: only the other subscriber's
	// inbox, whose random part nobody knows, could be named.
	targets := []string{
		"lockstep.local.deploy.c1.shop.deployment.web.forged", "lockstep.local.deploy_live.c1.shop.deployment.web.forged",
		"lockstep.local.desired.17.w", "_INBOX_17.x",
	}

	targets = append(append(targets, factSubjects("18")...), serverSubjects()...)

	for _, subject := range append(apiSubjects("subscriber-shop"), apiSubjects("dispatcher-18")...) {
		if strings.Contains(subject, topology.StreamDeploys) || strings.Contains(subject, topology.StreamDesired) ||
			strings.Contains(subject, "ACCOUNT") {
			targets = append(targets, subject)
		}
	}

	for _, carrier := range []string{
		"$JS.API.CONSUMER.MSG.NEXT.DEPLOYS.subscriber-reader", "$JS.API.CONSUMER.INFO.DEPLOYS.subscriber-reader",
		"$JS.ACK.DEPLOYS.subscriber-reader.1.1.1.1.0",
	} {
		body := []byte("")
		if strings.Contains(carrier, "MSG.NEXT") {
			body = []byte(`{"batch":1,"no_wait":true}`)
		}

		for _, target := range targets {
			message := nats.NewMsg(carrier)
			message.Reply, message.Data = target, body
			message.Header.Set(server.MsgTraceDest, target)
			require.NoError(t, reader.PublishRequest(carrier, target, body))
			require.NoError(t, reader.PublishMsg(message))
		}

		require.NoError(t, reader.FlushWithContext(testContext(t)))
		// A valid request. All earlier requests are answered before it.
		_, err = consumer.Info(testContext(t))
		require.NoError(t, err)
	}

	require.Equal(t, before, c.untouched(t))

	for _, s := range ears {
		n, _, err := s.Pending()
		require.NoError(t, err)
		require.Zero(t, n, "%s receives a message of a reader", s.Subject)
	}
	// Listeners still receive real facts.
	c.publishFact(t, "shop", "true")

	for _, s := range ears {
		if !strings.Contains(s.Subject, "deploy") {
			continue
		}

		message, err := s.NextMsg(timeout)
		require.NoError(t, err)
		require.Equal(t, "shop/true", string(message.Data))
	}
}
