package slack_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/egress"
	"lockstep.internal/libs/retry"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/sink"
	"lockstep.internal/services/deploys/sink/sinktest"
	"lockstep.internal/services/deploys/sink/slack"
	"lockstep.internal/services/deploys/sink/slack/slacktest"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

type bundle struct {
	t       *testing.T
	server  *slacktest.Server
	threads *sinktest.Threads
	limiter *sink.Limiter
	network *sinktest.Network // nil for the loopback interface
	sink    *slack.Sink
	next    int
}

// setup starts a fake Slack server without rate limits.
func setup(t *testing.T) *bundle {
	t.Helper()
	b := &bundle{t: t, server: slacktest.Start(t), threads: &sinktest.Threads{}, limiter: sink.NewLimiter()}
	b.server.Limit.Windows = nil
	b.open()
	return b
}

func (b *bundle) open() {
	b.t.Helper()
	cfg := slack.DefaultConfig()
	cfg.APIURL, cfg.Channel, cfg.TokenFile = config.URL(b.server.APIURL()), slacktest.Channel,
		config.SecretValue(slacktest.Token)
	require.Empty(b.t, cfg.Validate())
	require.Empty(b.t, cfg.Missing())
	options := sink.ClientOptions{
		Limiter: b.limiter,
		Timeout: 5 * time.Second,
		Network: egress.Config{AllowPrivate: true},
	}
	if b.network != nil {
		options.Dial = b.network.Dial
	}
	client := sink.NewClient(options)
	b.t.Cleanup(client.CloseIdleConnections)
	var err error
	b.sink, err = slack.New(cfg, slack.Options{Client: client, Limiter: b.limiter})
	require.NoError(b.t, err)
}

func (b *bundle) fact(name events.Fact) events.DeployFact {
	b.next++
	return events.DeployFact{
		Fact: name, Sequence: b.next, Provenance: events.ProvenanceObserved,
		Workload: events.Workload{ClusterUID: "c1", Namespace: "shop", Kind: "deployment", Name: "checkout"},
		Rollout: &events.Rollout{
			ID:       "c1/u/42",
			Revision: 42,
			Change:   "updated",
			Images:   []events.Image{{Container: "c", Image: "registry.example.com/shop:1"}},
		},
		Counts: &events.Counts{Desired: 5, Updated: b.next, Available: 4},
	}
}

func (b *bundle) deliver(facts ...events.DeployFact) error {
	b.t.Helper()
	last := facts[len(facts)-1]
	thread, ok := b.sink.Thread(last)
	require.True(b.t, ok)
	return b.sink.Deliver(b.t.Context(), sink.Delivery{
		Key:     "k",
		Thread:  thread,
		Fact:    last,
		Earlier: facts[:len(facts)-1],
		Threads: b.threads,
	})
}

func TestRolloutIsOneEditedMessage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.NoError(t, b.deliver(b.fact(events.FactStarted)))
	require.Equal(t, ":arrows_counterclockwise: *shop/checkout* started (revision 42) · 1/5 new, 4 available\n"+
		"`registry.example.com/shop:1`", b.server.Messages()[0].Text)
	require.NoError(t, b.deliver(b.fact(events.FactProgressed)))
	require.Contains(t, b.server.Messages()[0].Text, "started (revision 42) · 2/5 new")
	stalled := b.fact(events.FactStalled)
	stalled.Message = "no <!channel> of `it`"
	require.NoError(t, b.deliver(stalled))
	require.Contains(t, b.server.Messages()[0].Text, ":warning: *shop/checkout* stalled")
	require.Contains(t, b.server.Messages()[0].Text, ">no &lt;!channel&gt; of 'it'")
	require.NoError(t, b.deliver(b.fact(events.FactProgressed)))
	require.Contains(t, b.server.Messages()[0].Text, "stalled (revision 42) · 4/5 new", "progress keeps the state")
	done := b.fact(events.FactCompleted)
	ms := 64000
	done.DurationMs = &ms
	require.NoError(t, b.deliver(done))
	require.NoError(t, b.deliver(b.fact(events.FactDrained)))
	messages := b.server.Messages()
	require.Len(t, messages, 1)
	require.Contains(t, messages[0].Text,
		":white_check_mark: *shop/checkout* completed (revision 42) after 1m4s, old pods gone")
	require.Equal(t, 5, messages[0].Edits)

	require.NoError(t, b.deliver(done), "delivered again")
	require.Equal(t, messages, b.server.Messages(), "an older fact is ignored")
}

func TestWaitingFactsBecomeOneMessage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.NoError(t, b.deliver(b.fact(events.FactStarted), b.fact(events.FactProgressed), b.fact(events.FactCompleted),
		b.fact(events.FactDrained)))
	require.Len(t, b.server.Messages(), 1)
	require.Contains(t, b.server.Messages()[0].Text, "completed (revision 42), old pods gone")
	require.Zero(t, b.server.Messages()[0].Edits)
}

// The response of Slack is lost, or the sink crashes before it stores the message.
func TestMessageIsFoundAfterCrash(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]sinktest.Fault{
		"lost response": sinktest.DropResponse(), "incomplete response": sinktest.TruncateResponse(),
		"timeout": sinktest.Hang(true),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.server.Faults.Next(fault)
			first := b.fact(events.FactStarted)
			require.Error(t, b.deliver(first))
			require.Len(t, b.server.Messages(), 1)
			b.server.AddMessages(450)
			b.open()
			require.NoError(t, b.deliver(first))
			require.NoError(t, b.deliver(b.fact(events.FactCompleted)))
			require.Len(t, b.server.Messages(), 451)
			require.Contains(t, b.server.Messages()[0].Text, "completed")
			require.Equal(t, 1, b.server.Calls("chat.postMessage"))
		})
	}
}

func TestLostMessageIsPostedAgain(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]sinktest.Fault{
		"dropped request": sinktest.Drop(), "status 503": sinktest.Status(503, nil, "<html>"),
		"no response": sinktest.Hang(false),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.server.Faults.Next(fault)
			first := b.fact(events.FactStarted)
			err := b.deliver(first)
			require.Error(t, err)
			require.NotContains(t, err.Error(), slacktest.Token)
			require.NoError(t, b.deliver(first))
			require.Len(t, b.server.Messages(), 1)
			require.Equal(t, 1, b.server.Calls("conversations.history"))
		})
	}
}

func TestMessageIsPostedAgainWithoutHistoryScope(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.server.SetError("conversations.history", "missing_scope")
	b.server.Faults.Next(sinktest.Drop())
	first := b.fact(events.FactStarted)
	require.Error(t, b.deliver(first))
	require.NoError(t, b.deliver(first))
	require.Len(t, b.server.Messages(), 1)
}

func TestDeletedMessageIsPostedAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.NoError(t, b.deliver(b.fact(events.FactStarted)))
	b.server.Delete()
	require.NoError(t, b.deliver(b.fact(events.FactCompleted)))
	require.Len(t, b.server.Messages(), 1)
}

func TestPermanentAndTemporaryErrors(t *testing.T) {
	t.Parallel()
	for slackErr, permanent := range map[string]bool{
		"msg_too_long":      true,
		"restricted_action": true,
		"channel_not_found": false,
		"not_in_channel":    false,
		"is_archived":       false,
		"invalid_auth":      false,
		"token_revoked":     false, "internal_error": false, "fatal_error": false,
	} {
		t.Run(slackErr, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.server.SetError("chat.postMessage", slackErr)
			first := b.fact(events.FactStarted)
			err := b.deliver(first)
			require.ErrorContains(t, err, slackErr)
			require.Equal(t, permanent, retry.IsPermanent(err))
			b.server.SetError("chat.postMessage", "")
			require.NoError(t, b.deliver(first))
			require.Len(t, b.server.Messages(), 1)
		})
	}
}

func TestMessageIsPostedAfterRequestedDelay(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.server.Faults.Next(sinktest.Status(http.StatusTooManyRequests, http.Header{"Retry-After": {"1"}},
		`{"ok":false,"error":"ratelimited"}`))
	first := b.fact(events.FactStarted)
	var after *sink.RetryAfter
	require.ErrorAs(t, b.deliver(first), &after)
	require.Equal(t, time.Second, after.Delay)
	require.NoError(t, b.deliver(first), "the delivery waits for the end of the pause")
	require.Zero(t, b.server.Calls("conversations.history"), "Slack rejected the message, so the channel is not searched")
}

func TestLimiterStaysBelowLimitOfSlack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		network := sinktest.NewNetwork()
		b := &bundle{
			t: t, server: slacktest.StartOn(t, network), threads: &sinktest.Threads{},
			limiter: sink.NewLimiter(slack.Limits()...), network: network,
		}
		b.open()
		for range 100 {
			require.NoError(t, b.sink.AwaitLimit(t.Context()))
			require.NoError(t, b.deliver(b.fact(events.FactProgressed)))
		}
		rejected, _ := b.server.Limit.Refused()
		require.Zero(t, rejected)
	})
}

func TestNothingIsPostedWhileDatabaseIsUnavailable(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.threads.Down(true)
	require.ErrorIs(t, b.deliver(b.fact(events.FactStarted)), sinktest.ErrDown)
	require.Empty(t, b.server.Messages(), "nothing is posted")
}

func TestEnvironmentAndScalingHaveOwnMessages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	scale := b.fact(events.FactScaleStarted)
	scale.Rollout = nil
	other := b.fact(events.FactScaleCompleted)
	other.Rollout = nil
	group := b.fact(events.FactEnvironmentReady)
	group.Rollout, group.Environment = nil, &events.Environment{
		Group: "pr-318",
		Run:   "r",
		Url:   "https://pr-318.example.com",
	}
	for _, f := range []events.DeployFact{scale, other, group} {
		require.NoError(t, b.deliver(f))
	}
	require.Len(t, b.server.Messages(), 3)
	require.Contains(t, b.server.Messages()[2].Text, "*pr-318* environment ready")
	require.Contains(t, b.server.Messages()[2].Text, "<https://pr-318.example.com>")
}

func TestInvalidConfigurationIsReported(t *testing.T) {
	t.Parallel()
	require.Len(t, slack.DefaultConfig().Missing(), 2)
	require.Len(t, slack.Config{APIURL: "x"}.Validate(), 1)
}
