package cli

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/topology"
	"lockstep.internal/tools/detection/watchertest"
)

// other returns a watcher of agent 2, of another project, with the clock and versions of the first one. It publishes
// nothing.
func (b *deploysFixture) other(versions int) *watchertest.Watcher {
	return &watchertest.Watcher{
		Cell:     b.watcher.Cell,
		Agent:    2,
		Now:      b.watcher.Now,
		Versions: b.watcher.Versions + versions,
		Publish:  b.watcher.Publish,
	}
}

func TestReplayUsesProjectsOfClusters(t *testing.T) {
	t.Parallel()
	b := newDeploysFixture(t)
	b.publishDirectory()
	web := b.watcher.Deployment("web", nil)
	b.publish(func() error { return b.watcher.List("r1", web) }, func() error { return web.Roll("2") }, web.Step)
	forger := b.other(1000)
	forgedWeb := web.As(forger)
	forger.Now = b.watcher.Now
	b.publish(forger.Tick, func() error { return forger.List("forged") }, func() error { return forgedWeb.Roll("evil") },
		forgedWeb.Finish)
	b.publish(web.Finish, b.watcher.Tick, func() error { return web.Roll("3") }, web.Step)
	_, note := b.runs("deploys", "clusters", "release", watchertest.Cluster, "--to", "2", "--yes")
	require.Contains(t, note, "moved cluster cluster-1 from project 1 to 2; rollouts that ended as unknown: 1")
	next := b.other(0)
	theirs := web.As(next)
	b.publish(func() error { return next.List("r2", theirs) }, theirs.Finish, func() error { return theirs.Roll("4") },
		theirs.Finish, next.Tick)

	stream, err := b.js.Stream(t.Context(), topology.StreamDeploys)
	require.NoError(t, err)
	facts := int(stream.CachedInfo().State.LastSeq)
	require.Greater(t, facts, 8)
	withoutAPI := append([]string{}, b.flags...)
	for i := range withoutAPI {
		if withoutAPI[i] == "--deploys-server" {
			withoutAPI[i+1] = "http://127.0.0.1:1"
		}
	}
	for name, flags := range map[string][]string{"from the API": b.flags, "derived from the streams": withoutAPI} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, out, note := run(t, append(slices.Clip(flags), "replay", "--through", "deploys")...)
			require.Zero(t, code, note)
			require.Contains(t, note, " 0 different, 0 not published, 0 published but not detected")
			require.Len(t, strings.Split(strings.TrimSpace(out), "\n"), facts)
			require.Contains(t, note, `agent 2 of project 2 reported cluster "cluster-1" of project 1: rejected 5 messages`)
			require.Equal(t, name == "derived from the streams",
				strings.Contains(note, "cannot ask the deploys service for the projects of clusters"))
			require.Contains(t, out, "unknown revision=3")

			// A replay of one agent, with the decisions about its cluster.
			code, out, note = run(t, append(slices.Clip(flags), "replay", "observed.1.>", "--through", "deploys")...)
			require.Zero(t, code, note)
			require.Contains(t, out, "unknown revision=3")
			require.Contains(t, note, " 0 different, 0 not published")
			// A range after the forged messages.
			code, _, note = run(t, append(slices.Clip(flags), "replay", "--through", "deploys", "--from-seq", "16")...)
			require.Zero(t, code, note)
			require.Contains(t, note, " 0 different, 0 not published, 0 published but not detected")
			require.NotContains(t, note, "rejected ")
		})
	}
}

func TestListAndReleaseClusters(t *testing.T) {
	t.Parallel()
	b := newDeploysFixture(t)
	_, note := b.runs("deploys", "clusters")
	require.Contains(t, note, "nothing found")
	web := b.watcher.Deployment("web", nil)
	b.publish(func() error { return b.watcher.List("r1", web) }, func() error { return web.Roll("2") })
	out, _ := b.runs("deploys", "clusters")
	require.Regexp(t, `cluster-1 +1 +\d+s +agent 1 +1 +1 +1`, out)

	code, _, stderr := b.run("deploys", "clusters", "release", "cluster-1")
	require.Equal(t, 2, code, "without confirmation nothing changes")
	require.Contains(t, stderr, "not confirmed, nothing changed")
	code, _, stderr = b.run("deploys", "clusters", "release", "cluster-2", "--yes")
	require.Equal(t, 5, code, stderr)
	require.Contains(t, stderr, "`lockstep deploys clusters` lists all clusters")
	code, _, stderr = b.run("deploys", "clusters", "release", "cluster-1", "--to", "12", "--yes")
	require.Equal(t, 5, code, stderr)
	require.Contains(t, stderr, "project 12 does not exist")
	code, _, stderr = b.run("deploys", "clusters", "release", "cluster-1", "--to", "1", "--yes")
	require.Equal(t, 8, code, stderr)

	out, note = b.runs("deploys", "clusters", "release", "cluster-1", "--yes", "--reason", "sold")
	require.Regexp(t, `cluster-1 +none +\d+s +user 1 +0 +0`, out)
	require.Contains(t, note, "from project 1 to none; rollouts that ended as unknown: 1")
	require.Contains(t, note, "lockstep agent resync AGENT")
	out, _ = b.runs("deploys", "get", "shop/web")
	require.Regexp(t, `state +unknown`, out)
	require.Regexp(t, `message +Released its cluster was taken from its project before it ended`, out)
	out, _ = b.runs("deploys", "clusters", "-o", "yaml")
	require.Contains(t, out, "reason: sold")

	other := b.other(0)
	b.publish(func() error { return other.List("r2", web.As(other)) })
	out, _ = b.runs("deploys", "clusters")
	require.Regexp(t, `cluster-1 +2 +\d+s +agent 2 +2 +1 +0`, out)
	_, note = b.runs("rebuild", "deploys", "--check")
	require.Contains(t, note, "the tables match the streams")
}
