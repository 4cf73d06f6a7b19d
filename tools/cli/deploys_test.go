package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/topology"
	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
	"lockstep.internal/tools/board"
)

func TestRolloutCommands(t *testing.T) {
	t.Parallel()
	b := newDeploysFixture(t)
	web, db := b.watcher.Deployment("web", nil), b.watcher.Deployment("db", nil)
	b.publish(func() error { return b.watcher.List("r1", web, db) }, func() error { return web.Roll("2") }, web.Step,
		web.Finish, func() error { return db.Roll("9") })

	out, _ := b.runs("deploys", "list")
	require.Regexp(t, `shop/deployment/db +2 +updated +running .* 1/3 +db:1 → 9`, out)
	require.Regexp(t, `shop/deployment/web +2 +updated +completed .* 3/3 +web:1 → 2`, out)
	out, _ = b.runs("deploys", "list", "shop/web", "--state", "completed", "--since", "2h", "-o", "json")
	var list struct {
		Rollouts []struct {
			ID string `json:"id"`
		} `json:"rollouts"`
	}
	require.NoError(t, json.Unmarshal([]byte(out), &list))
	require.Len(t, list.Rollouts, 1)
	_, note := b.runs("deploys", "list", "--stuck")
	require.Contains(t, note, "nothing found")
	out, _ = b.runs("deploys", "list", "--limit", "1")
	require.Len(t, strings.Split(strings.TrimSpace(out), "\n"), 2, "a header and one rollout")

	out, _ = b.runs("deploys", "get", "shop/web")
	require.Regexp(t, `state +completed`, out)
	require.Regexp(t, `started[^\n]*\n[^\n]*progressed[^\n]*\n[^\n]*completed`, out)
	byID, _ := b.runs("deploys", "get", list.Rollouts[0].ID)
	require.Equal(t, out, byID)
	code, _, stderr := b.run("deploys", "get", "shop/none")
	require.Equal(t, 5, code, stderr)

	out, _ = b.runs("deploys", "stats", "--since", "24h")
	require.Regexp(t, `all +2 +1 +1 `, out)
	require.Regexp(t, `shop/deployment/web +1 +1 +0 +5\.5s +5\.5s`, out)
}

func TestDeletedWorkloadsAreMarked(t *testing.T) {
	t.Parallel()
	b := newDeploysFixture(t)
	web, shop := b.watcher.Deployment("web", nil), b.watcher.Deployment("shop", nil)
	b.publish(func() error { return b.watcher.List("r1", web, shop) }, func() error { return web.Roll("2") }, web.Finish,
		func() error { return shop.Roll("2") }, shop.Finish, func() error { return b.watcher.List("r2", shop) })
	out, _ := b.runs("deploys", "list")
	require.Regexp(t, `shop/deployment/web \(deleted\) +2 +updated`, out)
	require.Regexp(t, `shop/deployment/shop +2 +updated`, out)
	out, _ = b.runs("deploys", "get", "shop/web")
	require.Regexp(t, `workload +shop/deployment/web \(deleted\)`, out)
	out, _ = b.runs("__complete", "deploys", "list", "")
	require.Contains(t, out, "shop/deployment/web\n")
	again := b.watcher.Deployment("web", nil)
	b.publish(func() error { return b.watcher.List("r3", again, shop) })
	out, _ = b.runs("deploys", "list")
	require.NotContains(t, out, "deleted", "another one has its name now")
}

func TestSinkCommands(t *testing.T) {
	t.Parallel()
	b := newDeploysFixture(t)
	web := b.watcher.Deployment("web", nil)
	b.publish(func() error { return b.watcher.List("r1", web) }, func() error { return web.Roll("2") })
	out, _ := b.runs("deploys", "sinks")
	require.Regexp(t, `chat +slack +7 +2 +1 +429 Too Many Requests \(for 5m\)`, out)
	b.runs("deploys", "backfill", "chat")
	require.Equal(t, []string{"backfill"}, b.sinks.calls)
	code, _, stderr := b.run("deploys", "backfill", "none")
	require.Equal(t, 5, code, stderr)
	out, _ = b.runs("deploys", "get", "shop/web", "-o", "json")
	var one struct {
		Facts []struct {
			ID       string `json:"id"`
			Sequence string `json:"stream_sequence"`
		} `json:"facts"`
	}
	require.NoError(t, json.Unmarshal([]byte(out), &one))
	b.runs("deploys", "resend", "chat", one.Facts[0].ID)
	require.Equal(t, []string{"backfill", "resend"}, b.sinks.calls)
	require.Equal(t, "1", one.Facts[0].Sequence)
	require.EqualValues(t, 1, b.sinks.last)
	code, _, stderr = b.run("deploys", "resend", "chat", "none")
	require.Equal(t, 5, code, stderr)
}

func TestRebuildDeploys(t *testing.T) {
	t.Parallel()
	b := newDeploysFixture(t)
	web := b.watcher.Deployment("web", nil)
	b.publish(func() error { return b.watcher.List("r1", web) }, func() error { return web.Roll("2") }, web.Finish)
	_, note := b.runs("rebuild", "deploys", "--check")
	require.Contains(t, note, "the tables match the streams")
	_, err := b.pool.Exec(t.Context(), `update rollouts set reason = 'spoilt'`)
	require.NoError(t, err)
	code, out, stderr := b.run("rebuild", "deploys", "--check")
	require.Equal(t, 8, code, stderr)
	require.Contains(t, stderr, "repair them with lockstep rebuild deploys")
	require.Regexp(t, `rollouts +1 +1`, out)
	_, note = b.runs("rebuild", "deploys")
	require.Contains(t, note, "repaired 1 rows")
	b.runs("rebuild", "deploys", "--check")
}

func TestReplayComparesWithPublishedFacts(t *testing.T) {
	t.Parallel()
	b := newDeploysFixture(t)
	web := b.watcher.Deployment("web",
		map[string]string{"lockstep.dev/deploy-group": "pr-1", "lockstep.dev/deploy-group-size": "1"})
	b.publish(func() error { return b.watcher.List("r1", web) }, func() error { return web.Roll("2") }, web.Step,
		func() error { return web.Roll("3") }, web.Finish, b.watcher.Tick)
	stream, err := b.js.Stream(t.Context(), topology.StreamDeploys)
	require.NoError(t, err)
	out, note := b.runs("replay", "--through", "deploys")
	require.Contains(t, note, " 0 different, 0 not published, 0 published but not detected")
	require.Len(t, strings.Split(strings.TrimSpace(out), "\n"), int(stream.CachedInfo().State.LastSeq))
	require.Regexp(t, `shop/deployment/web  completed revision=3 change=updated pods=3/3 available=3`, out)

	b.publishForgedFact(stream)
	out, note = b.runs("replay", "--through", "deploys")
	require.Contains(t, note, "1 published but not detected")
	require.Regexp(t, `(?m)^- .*  stalled revision=2`, out)
	// A range that starts within the first rollout: the state before it is known.
	out, note = b.runs("replay", "--through", "deploys", "--from-seq", "7", "-o", "json")
	require.Contains(t, note, " 0 different, 0 not published, 0 published but not detected")
	require.NotContains(t, out, `"fact":"environment_started"`)
	require.Contains(t, out, `"fact":"superseded"`)
}

func TestWatchPrintsOneLinePerFact(t *testing.T) {
	t.Parallel()
	b := newDeploysFixture(t)
	web := b.watcher.Deployment("web", nil)
	b.publish(func() error { return b.watcher.List("r1", web) }, func() error { return web.Roll("2") })
	out, stop := b.start("deploys", "watch")
	awaitOutput := func(text string) {
		t.Helper()
		isPrinted := func() bool { return strings.Contains(out.String(), text) }
		require.Eventually(t, isPrinted, processTimeout, 10*time.Millisecond, "%s", text)
	}
	awaitOutput("shop/deployment/web  r2  started, updated, web:1 → 2\n")
	b.publish(web.Step)
	awaitOutput("2 new, 1 old, 2 available of 3\n")
	// The watch reconnects. Rollouts that ended meanwhile are printed, each once.
	b.api.CloseClientConnections()
	b.publish(web.Finish)
	awaitOutput("completed after 5.5s\n")
	require.Zero(t, stop())
	for _, once := range []string{
		"watching rollouts until Ctrl-C\n", "started", "completed", "lost the server; connecting again\n",
		"connected to the server again\n",
	} {
		require.Equal(t, 1, strings.Count(out.String(), once), out.String())
	}
}

func TestWatchOfAnUnknownWorkloadIsNoted(t *testing.T) {
	t.Parallel()
	b := newDeploysFixture(t)
	out, stop := b.start("deploys", "watch", "shop/web")
	awaitOutput := func(text string) {
		t.Helper()
		isPrinted := func() bool { return strings.Contains(out.String(), text) }
		require.Eventually(t, isPrinted, processTimeout, 10*time.Millisecond, "%s", text)
	}
	awaitOutput("watching rollouts until Ctrl-C; no rollout of shop/deployment/web is known yet\n")
	web := b.watcher.Deployment("web", nil)
	b.publish(func() error { return b.watcher.List("r1", web) }, func() error { return web.Roll("2") })
	awaitOutput("shop/deployment/web  r2  started")
	require.Zero(t, stop())
}

func TestWatchShowsScaling(t *testing.T) {
	t.Parallel()
	b := newDeploysFixture(t)
	web := b.watcher.Deployment("web", nil)
	b.publish(func() error { return b.watcher.List("r1", web) }, func() error { return web.Roll("2") })
	out, stop := b.start("deploys", "watch")
	awaitOutput := func(text string) {
		t.Helper()
		isPrinted := func() bool { return strings.Contains(out.String(), text) }
		require.Eventually(t, isPrinted, processTimeout, 10*time.Millisecond, "%s", text)
	}
	awaitOutput("started")
	b.publish(web.Finish, func() error { return web.Scale(5) })
	awaitOutput("shop/deployment/web  scaling from 3 to 5\n")
	b.publish(web.Finish)
	awaitOutput("shop/deployment/web  scaled from 3 to 5\n")
	require.Zero(t, stop())
}

func TestWatchAsJSON(t *testing.T) {
	t.Parallel()
	b := newDeploysFixture(t)
	web := b.watcher.Deployment("web", nil)
	b.publish(func() error { return b.watcher.List("r1", web) }, func() error { return web.Roll("2") }, web.Finish)
	out, stop := b.start("deploys", "watch", "--ended", "5", "-o", "json")
	const begun = "watching rollouts until Ctrl-C\n"
	isLineComplete := func() bool { return strings.HasSuffix(strings.TrimPrefix(out.String(), begun), "}\n") }
	require.Eventually(t, isLineComplete, processTimeout, 10*time.Millisecond)
	require.Zero(t, stop())
	var message struct {
		Rollout struct {
			State string `json:"state"`
		} `json:"rollout"`
	}
	require.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(out.String(), begun)), &message))
	require.Equal(t, "ROLLOUT_STATE_COMPLETED", message.Rollout.State)
}

func TestScreenRedraws(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := newScreen(&out, func() board.Page { return board.Page{Width: 60, Height: 20} })
	running := &deploysv1.Rollout{
		Id:       "1",
		State:    deploysv1.RolloutState_ROLLOUT_STATE_RUNNING,
		Workload: &deploysv1.Workload{Namespace: "n", Kind: "deployment", Name: "web"},
	}
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	require.NoError(t, s.draw([]*deploysv1.Rollout{running}, now))
	require.NotContains(t, out.String(), "\x1b[3A")
	drawn := out.Len()
	require.NoError(t, s.draw([]*deploysv1.Rollout{running}, now))
	require.Equal(t, drawn, out.Len(), "nothing changed")
	over := &deploysv1.Rollout{
		Id:       "1",
		State:    deploysv1.RolloutState_ROLLOUT_STATE_COMPLETED,
		Workload: running.GetWorkload(),
	}
	require.NoError(t, s.take(running, &deploysv1.WatchRolloutsResponse{Rollout: over}))
	require.NoError(t, s.draw(nil, now))
	require.Regexp(t, `\x1b\[3A\r\x1b\[J✓ n/deployment/web .*\nno rollout is running\n$`, out.String())
	s.close()
	require.True(t, strings.HasSuffix(out.String(), showCursor))
}

func TestWorkloadOf(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"shop/web":            "shop/deployment/web",
		"shop/StatefulSet/db": "shop/statefulset/db",
	} {
		w, err := workloadOf(text)
		require.NoError(t, err)
		require.Equal(t, want, w.GetNamespace()+"/"+w.GetKind()+"/"+w.GetName())
	}
	for _, text := range []string{"", "web", "/web", "shop/", "a/b/c/d", "shop//web"} {
		_, err := workloadOf(text)
		require.Error(t, err, text)
	}
}
