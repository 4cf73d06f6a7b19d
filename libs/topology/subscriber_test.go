package topology_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/topology"
	"lockstep.internal/tools/testkit/natstest"
)

func TestSubscriberFilters(t *testing.T) {
	t.Parallel()
	for filter, want := range map[string]string{
		"":                        "lockstep.local.deploy.>",
		"deploy.>":                "lockstep.local.deploy.>",
		"lockstep.local.deploy.>": "lockstep.local.deploy.>",
		"deploy.*.shop.>":         "lockstep.local.deploy.*.shop.>",
		"deploy.c1.shop.deployment.web.completed": "lockstep.local.deploy.c1.shop.deployment.web.completed",
		"deploy.*.*.*.*.completed":                "lockstep.local.deploy.*.*.*.*.completed",
		"deploy.*.*.deployment.web%2E1.>":         "lockstep.local.deploy.*.*.deployment.web%2E1.>",
		"deploy.*._.group.pr-1.environment_ready": "lockstep.local.deploy.*._.group.pr-1.environment_ready",
		"job.>":                    "lockstep.local.job.>",
		"job.17.>":                 "lockstep.local.job.17.>",
		"job.17.*.finished":        "lockstep.local.job.17.*.finished",
		"lockstep.local.job.*.9.*": "lockstep.local.job.*.9.*",
		"admission.>":              "lockstep.local.admission.>",
		"admission.17.>":           "lockstep.local.admission.17.>",
		"admission.17.*.decided":   "lockstep.local.admission.17.*.decided",
	} {
		got, err := cell.SubscriberFilter(filter)
		require.NoError(t, err, filter)
		require.Equal(t, want, got)
		again, err := cell.SubscriberFilter(got)
		require.NoError(t, err)
		require.Equal(t, want, again)
	}
	for _, filter := range []string{
		">", "*", "*.>", "deploy", "deploy.", "deploy.*", "deploy.*.*.*.*", "deploy.*.*.*.*.*.*", "deploy.*.*.*.*.*.>",
		"deploy.>.x", "deploy..*.*.*.*", "deploy.* .*.*.*.*",
		"deploy.a*.*.*.*.*", "deploy.>x", "deploy.%2.*.*.*.*", "deploy.*.*.*.*.\n", "lockstep.other.deploy.>",
		"lockstep.local.desired.>", "lockstep.*.deploy.>", "lockstep.>", "desired.>",
		"job", "job.", "job.17", "job.17.*", "job.17.*.*.*", "job.17.9.finished.>", "job.web.>", "job.0.>", "job.-1.>",
		"job.*.x.finished", "job_live.>", "lockstep.other.job.>",
		"admission", "admission.17", "admission.web.>", "admission.17.9.decided.x", "admission_live.>", "runner.>",
		"deploy_live.>", "deployx.>", "lockstep.local.deploy_live.>", "$JS.>", "deploy." + strings.Repeat("a", 600) + ".>",
	} {
		_, err := cell.SubscriberFilter(filter)
		require.Error(t, err, filter)
	}
}

func FuzzSubscriberFilter(f *testing.F) {
	f.Add("deploy.*.shop.>")
	f.Add("lockstep.local.deploy.a.b.c.d.e")
	f.Add("job.17.*.finished")
	f.Add("admission.17.>")
	streams := map[string]string{
		"deploy": topology.StreamDeploys, "job": topology.StreamJobs, "admission": topology.StreamAdmission,
	}
	f.Fuzz(func(t *testing.T, filter string) {
		if got, err := cell.SubscriberFilter(filter); err == nil {
			rest, below := strings.CutPrefix(got, "lockstep.local.")
			require.True(t, below, got)
			family, _, _ := strings.Cut(rest, ".")
			require.Contains(t, streams, family, got)
			require.Equal(t, streams[family], topology.Subscriber{Filter: got}.Stream())
			require.NotContains(t, got, " ")
			require.NotContains(t, got, "..")
		}
	})
}

func TestStoredMessagesAreRepublishedOnce(t *testing.T) {
	t.Parallel()
	js := natstest.JetStream(t, natstest.Server(t))
	require.NoError(t, topology.Ensure(natstest.Context(t), js, cell, options()))
	live, err := js.Conn().SubscribeSync(cell.All(topology.FamilyDeployLive))
	require.NoError(t, err)
	subject := cell.Deploy("c1", "shop", "deployment", "web", "started")
	for range 3 { // as two detectors that publish the same fact repeatedly
		_, _ = js.Publish(
			t.Context(), subject, []byte("x"),
			jetstream.WithExpectLastSequenceForSubject(0, cell.DeployAll("c1", "shop", "deployment", "web")),
		)
	}
	_, err = js.Publish(t.Context(), cell.Deploy("c1", "shop", "deployment", "web", "completed"), nil)
	require.NoError(t, err)
	first, err := live.NextMsg(timeout)
	require.NoError(t, err)
	require.Equal(t, "lockstep.local.deploy_live.c1.shop.deployment.web.started", first.Subject)
	require.Equal(t, subject, first.Header.Get("Nats-Subject"))
	require.Equal(t, "1", first.Header.Get("Nats-Sequence"))
	second, err := live.NextMsg(timeout)
	require.NoError(t, err)
	require.Equal(t, "lockstep.local.deploy_live.c1.shop.deployment.web.completed", second.Subject)
}

func TestSubscriberConsumerIsRecreatedUnchanged(t *testing.T) {
	t.Parallel()
	js := natstest.JetStream(t, natstest.Server(t))
	ctx := t.Context()
	require.NoError(t, topology.Ensure(ctx, js, cell, options()))
	publish := func(fact string) {
		_, err := js.Publish(ctx, cell.Deploy("c1", "shop", "deployment", "web", fact), nil)
		require.NoError(t, err)
	}
	publish("started")
	stream, err := js.Stream(ctx, topology.StreamDeploys)
	require.NoError(t, err)
	last, err := stream.GetMsg(ctx, 1)
	require.NoError(t, err)
	now := topology.Subscriber{Name: "now", Filter: cell.All(topology.FamilyDeploy), Since: last.Time.Add(time.Nanosecond)}
	all := topology.Subscriber{Name: "all", Filter: "lockstep.local.deploy.*.shop.>"}
	for range 2 {
		require.NoError(t, topology.EnsureSubscriber(ctx, js, now))
		require.NoError(t, topology.EnsureSubscriber(ctx, js, all))
	}
	publish("completed")
	requireReads := func(name string, facts ...string) {
		t.Helper()
		c, err := js.Consumer(ctx, topology.StreamDeploys, topology.SubscriberConsumer(name))
		require.NoError(t, err)
		for _, fact := range facts {
			m, err := c.Next(jetstream.FetchMaxWait(timeout))
			require.NoError(t, err)
			require.Equal(t, cell.Deploy("c1", "shop", "deployment", "web", fact), m.Subject())
		}
	}
	requireReads("now", "completed")
	requireReads("all", "started", "completed")
	require.NoError(t, topology.RemoveSubscriber(ctx, js, topology.StreamDeploys, "now"))
	require.NoError(t, topology.RemoveSubscriber(ctx, js, topology.StreamDeploys, "now"), "it is gone already")
	require.NoError(t, topology.EnsureSubscriber(ctx, js, now))
	requireReads("now", "completed")
	jobs := topology.Subscriber{Name: "jobs", Filter: "lockstep.local.job.17.>"}
	require.NoError(t, topology.EnsureSubscriber(ctx, js, jobs))
	_, err = js.Consumer(ctx, topology.StreamJobs, topology.SubscriberConsumer("jobs"))
	require.NoError(t, err)
	require.NoError(t, topology.RemoveSubscriber(ctx, js, topology.StreamJobs, "jobs"))
	name, ok := topology.SubscriberOf("subscriber-now")
	require.True(t, ok)
	require.Equal(t, "now", name)
	_, ok = topology.SubscriberOf("dispatcher-7")
	require.False(t, ok)
}
