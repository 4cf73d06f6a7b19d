package nats_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/nats"
	"lockstep.internal/services/runners/postgres"
	"lockstep.internal/services/runners/publish"
	"lockstep.internal/services/runners/runner"
	"lockstep.internal/services/runners/schedule"
	"lockstep.internal/tools/testkit/natstest"
	"lockstep.internal/tools/testkit/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const (
	cell = topology.Cell("local")
	soon = time.Minute
)

// TestEverythingIsPublishedAgainAfterAStreamIsLost loses both streams while a job waits for admission.
func TestEverythingIsPublishedAgainAfterAStreamIsLost(t *testing.T) {
	t.Parallel()
	logger := slog.New(slog.DiscardHandler)
	pool, err := libpostgres.Connect(t.Context(), libpostgres.Config{URL: pgtest.Database(t)}, logger)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	series, err := postgres.Migrations()
	require.NoError(t, err)
	require.NoError(t, libpostgres.Migrate(t.Context(), pool, logger, series...))
	conn := natstest.Connect(t, natstest.Server(t))
	js := natstest.Open(t, conn)
	ensure := func() {
		require.NoError(t, topology.Ensure(natstest.Context(t), js, cell, topology.Options{StorageBytes: 1 << 30}))
	}
	ensure()

	encoder := publish.Encoder{Cell: cell}
	scheduler := &schedule.Scheduler{
		Store: postgres.Pipelines{Pool: pool, Jobs: postgres.Jobs{Encoder: encoder}}, Now: time.Now, Logger: logger,
		Admission: schedule.Admission{Enabled: true, Timeout: time.Hour},
	}
	runners := postgres.Runners{Pool: pool, Encoder: encoder, Now: time.Now}
	publisher, err := nats.Publisher{
		Pool: pool, Conn: conn, Encoder: encoder, Runners: runners, Scheduler: scheduler, Logger: logger,
	}.Open()
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() {
		if err := publisher.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		stop()
		group.Wait()
	})

	create := func(name string) job.Job {
		p, err := scheduler.Create(t.Context(), schedule.Request{
			ProjectID: 4, OrganizationID: 1, UserID: 5, Source: "api", Ref: "main",
			File: []byte(name + ": {script: x, variables: {GITLAB_USER_ID: '1'}}"),
		})
		require.NoError(t, err)
		attempts, err := postgres.ReadAttempts(t.Context(), pool, p.ID)
		require.NoError(t, err)
		return attempts[0].Job
	}
	j := create("a")
	created, err := runners.Create(t.Context(), runner.Runner{Type: runner.InstanceType, CreatedAt: time.Now()})
	require.NoError(t, err)
	last := func(stream, subject string) *jetstream.RawStreamMsg {
		s, err := js.Stream(natstest.Context(t), stream)
		require.NoError(t, err)
		var found *jetstream.RawStreamMsg
		require.Eventually(t, func() bool {
			found, err = s.GetLastMsgForSubject(natstest.Context(t), subject)
			return err == nil
		}, soon, 10*time.Millisecond)
		return found
	}
	subject := cell.Job(j.ProjectID, j.ID, "preparing")
	before := last(topology.StreamJobs, subject)
	last(topology.StreamRunners, cell.Runner(created.ID))

	require.NoError(t, js.DeleteStream(natstest.Context(t), topology.StreamJobs))
	require.NoError(t, js.DeleteStream(natstest.Context(t), topology.StreamRunners))
	ensure()
	create("b") // its events show that the streams are new

	again := last(topology.StreamJobs, subject)
	last(topology.StreamRunners, cell.Runner(created.ID))
	want, got := preparation(t, before), preparation(t, again)
	require.Equal(t, want, got)
	require.Equal(t, "5", got.Variables["GITLAB_USER_ID"])
	require.Equal(t, int(j.Revision), got.Preparation)
	require.True(t, strings.HasSuffix(again.Header.Get("ce-id"), "/2/preparing"))
}

func preparation(t *testing.T, m *jetstream.RawStreamMsg) events.JobPreparing {
	t.Helper()
	decoded, err := event.Decode(m.Header, m.Data)
	require.NoError(t, err)
	got, err := events.Decode[events.JobPreparing](decoded.Data())
	require.NoError(t, err)
	return *got
}
