package admission_test

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/tools/testkit/natstest"
)

// The streams are restored from an older copy. The service publishes its decisions again, asks nobody again about a job
// that it has decided about, and decides about the jobs that follow.
func TestRestoredStreamsGetTheDecisionsAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start()
	s := newWebServer(t, answering(accept))
	f.create(project, projectID, s.settings("asked-once"))
	f.prepare(prepared(9001, "docker"))
	require.Equal(t, events.AdmissionOutcomeAdmitted, f.decided(9001).Outcome)
	copied := filepath.Join(t.TempDir(), "copy")
	require.NoError(t, f.server.Snapshot(copied))
	natstest.Reconnected(t, f.state.Conn())
	natstest.Reconnected(t, f.runners.Conn())
	f.prepare(prepared(9002, "docker"))
	first := f.decided(9002)

	require.NoError(t, f.server.Restore(copied))
	natstest.Reconnected(t, f.state.Conn())
	natstest.Reconnected(t, f.runners.Conn())
	again := f.decided(9002)
	require.Equal(t, first, again)
	// The service runners publishes the last event of each job again.
	f.prepare(prepared(9001, "docker"))
	f.prepare(prepared(9002, "docker"))
	f.prepare(prepared(9003, "docker"))
	require.Equal(t, events.AdmissionOutcomeAdmitted, f.decided(9003).Outcome)
	require.Len(t, s.received(), 3, "each job is asked about once")
}

// The streams are lost. State creates them again, and runners publishes all again.
func TestLostStreamsGetTheDecisionsAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start()
	s := newWebServer(t, answering(accept))
	f.create(project, projectID, s.settings("asked-once"))
	for id := 9001; id < 9004; id++ {
		f.prepare(prepared(id, "docker"))
		require.Equal(t, events.AdmissionOutcomeAdmitted, f.decided(id).Outcome)
	}
	for _, stream := range []string{topology.StreamJobs, topology.StreamAdmission, topology.StreamRunners} {
		require.NoError(t, f.admin().DeleteStream(t.Context(), stream))
	}
	require.NoError(t, topology.Ensure(natstest.Context(t), f.admin(), cell, topology.Options{StorageBytes: 1 << 30}))
	f.runner(events.RunnerChanged{
		RunnerID: linuxRunner, Revision: 1, Type: events.RunnerTypeInstanceType, Tags: []string{"docker"},
	})
	for id := 9001; id < 9005; id++ {
		f.prepare(prepared(id, "docker"))
	}
	for id := 9001; id < 9005; id++ {
		require.Equal(t, events.AdmissionOutcomeAdmitted, f.decided(id).Outcome)
	}
	require.Len(t, s.received(), 4, "each job is asked about once")
}

// The database is restored from an older copy. The service asks again about the jobs that the copy does not have, with
// the same id of the request, so that the controller knows it, and its decision is as before.
func TestRestoredDatabaseDecidesAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	stop := f.start()
	s := newWebServer(t, answering(accept))
	f.create(project, projectID, s.settings("idempotent"))
	f.prepare(prepared(9001, "docker"))
	f.decided(9001)
	stop()
	restored := copyDatabase(t, f.cfg.Database.URL.Reveal())
	stop = f.start()
	f.prepare(prepared(9002, "docker"))
	first := f.decided(9002)
	stop()

	f.cfg.Database.URL = config.URL(restored)
	f.start()
	require.Eventually(t, func() bool { return f.decisions(9002) == 2 }, soon, 10*time.Millisecond)
	again := f.decided(9002)
	require.Equal(t, first.Outcome, again.Outcome)
	require.Equal(t, first.Preparation, again.Preparation)
	require.Equal(t, first.Tags, again.Tags)
	f.prepare(prepared(9003, "docker"))
	require.Equal(t, events.AdmissionOutcomeAdmitted, f.decided(9003).Outcome)
	ids := map[string]int{}
	for _, r := range s.received() {
		ids[r.header.Get("Webhook-Id")]++
	}
	require.Len(t, ids, 3)
	require.Len(t, s.received(), 4)
}

// copyDatabase returns the URL of a copy, which is dropped at the end of the test.
func copyDatabase(t *testing.T, from string) string {
	t.Helper()
	at, err := url.Parse(from)
	require.NoError(t, err)
	name := strings.TrimPrefix(at.Path, "/")
	at.Path = "/postgres"
	conn, err := pgx.Connect(t.Context(), at.String())
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		_, err := conn.Exec(ctx, fmt.Sprintf("DROP DATABASE %s_copy WITH (FORCE)", name))
		require.NoError(t, err)
		require.NoError(t, conn.Close(ctx))
	})
	_, err = conn.Exec(t.Context(), fmt.Sprintf("CREATE DATABASE %[1]s_copy TEMPLATE %[1]s", name))
	require.NoError(t, err)
	at.Path = "/" + name + "_copy"
	return at.String()
}
