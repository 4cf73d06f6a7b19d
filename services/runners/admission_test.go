package runners_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/consumers"
	"lockstep.internal/libs/event"
	"lockstep.internal/libs/natsauth"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/libs/routable"
	"lockstep.internal/libs/stored"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/runners"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/postgres"
	"lockstep.internal/services/runners/publish"
	"lockstep.internal/services/runners/runner"
	"lockstep.internal/services/runners/schedule"
	"lockstep.internal/tools/testkit/natstest"
)

// admissionFixture is the service beside what the admission and the state service do.
type admissionFixture struct {
	*fixture

	cfg       runners.Config
	pool      *pgxpool.Pool
	admission jetstream.JetStream
	encoder   publish.Encoder
}

func newAdmissionFixture(t *testing.T) *admissionFixture {
	t.Helper()
	f := &admissionFixture{fixture: newFixture(t), encoder: publish.Encoder{Cell: cell}}
	f.admission = f.as(natsauth.PrincipalAdmission)
	responder := consumers.Responder{
		Direct: consumers.Direct{JetStream: f.as(natsauth.PrincipalState), Cell: cell},
		Logger: slog.New(slog.DiscardHandler),
	}
	ctx, stop := context.WithCancel(context.Background())
	var group sync.WaitGroup
	ready := make(chan struct{})
	group.Go(func() {
		if err := responder.Run(ctx, func() { close(ready) }); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		stop()
		group.Wait()
	})
	<-ready
	f.cfg = f.config()
	f.cfg.Admission.Enabled = true
	f.cfg.Queue.Hold = 50 * time.Millisecond
	return f
}

// open connects to the database, after the service has created the tables.
func (f *admissionFixture) open() {
	f.t.Helper()
	var err error
	f.pool, err = libpostgres.Connect(f.t.Context(),
		libpostgres.Config{URL: string(f.cfg.Database.URL), Schema: "runners"}, slog.New(slog.DiscardHandler))
	require.NoError(f.t, err)
	f.t.Cleanup(f.pool.Close)
}

// create creates a pipeline with one job, and returns the job.
func (f *admissionFixture) create(tags ...string) job.Job {
	f.t.Helper()
	scheduler := &schedule.Scheduler{
		Store: postgres.Pipelines{Pool: f.pool, Jobs: postgres.Jobs{Encoder: f.encoder}}, Now: time.Now,
		Logger: slog.New(slog.DiscardHandler), Admission: schedule.Admission{Enabled: true, Timeout: time.Hour},
	}
	p, err := scheduler.Create(f.t.Context(), schedule.Request{
		ProjectID: 4, OrganizationID: 1, UserID: 5, Source: "api",
		File: fmt.Appendf(nil, "a: {script: x, tags: [%s]}", strings.Join(tags, ", ")),
	})
	require.NoError(f.t, err)
	attempts, err := postgres.ReadAttempts(f.t.Context(), f.pool, p.ID)
	require.NoError(f.t, err)
	return attempts[0].Job
}

func (f *admissionFixture) job(id int64) job.Job {
	f.t.Helper()
	found, err := postgres.ReadJobs(f.t.Context(), f.pool, id)
	require.NoError(f.t, err)
	require.Len(f.t, found, 1)
	return found[0]
}

func (f *admissionFixture) await(id int64, state job.State) job.Job {
	f.t.Helper()
	require.Eventually(f.t, func() bool { return f.job(id).State == state }, soon, 10*time.Millisecond)
	return f.job(id)
}

// publish publishes an event about a job as the admission service does.
func (f *admissionFixture) publish(j job.Job, name string, data any) {
	f.t.Helper()
	made, err := event.New(event.Attributes{
		Type: event.TypePrefix + "admission." + name + ".v1", Source: event.ServiceSource(string(cell), "admission"),
		Subject: fmt.Sprint(j.ID), ID: fmt.Sprint(j.ID, "/", name, "/", time.Now().UnixNano()), Time: time.Now(),
	}, data)
	require.NoError(f.t, err)
	m, err := event.Encode(made, cell.Admission(j.ProjectID, j.ID, name))
	require.NoError(f.t, err)
	_, err = f.admission.PublishMsg(natstest.Context(f.t), m)
	require.NoError(f.t, err)
}

func (f *admissionFixture) decide(j job.Job, change func(*events.AdmissionDecided)) {
	f.t.Helper()
	d := events.AdmissionDecided{
		JobID: int(j.ID), Preparation: int(j.Revision), PipelineID: int(j.PipelineID), ProjectID: int(j.ProjectID),
		OrganizationID: int(j.OrganizationID), Outcome: events.AdmissionOutcomeAdmitted, Tags: j.Tags,
	}
	change(&d)
	f.publish(j, "decided", d)
}

// events returns the names of the events of a job on the stream, in their order.
func (f *admissionFixture) events(j job.Job) []string {
	f.t.Helper()
	var names []string
	reader := stored.Reader{JetStream: f.admission, Stream: topology.StreamJobs}
	info, err := f.admission.Stream(natstest.Context(f.t), topology.StreamJobs)
	require.NoError(f.t, err)
	last := info.CachedInfo().State.LastSeq
	if last == 0 {
		return nil
	}
	require.NoError(f.t, reader.Read(natstest.Context(f.t), cell.JobAll(j.ProjectID, j.ID), 1, last,
		func(m stored.Message) error {
			names = append(names, m.Subject[strings.LastIndexByte(m.Subject, '.')+1:])
			return nil
		}))
	return names
}

// runner creates a runner of the instance and returns its id and its token.
func (f *admissionFixture) runner(tags ...string) (id int64, token string) {
	f.t.Helper()
	token, hash, err := runner.NewToken(routable.Payload{Cell: cell})
	require.NoError(f.t, err)
	created, err := postgres.Runners{Pool: f.pool, Encoder: f.encoder, Now: time.Now}.Create(f.t.Context(), runner.Runner{
		Type: runner.InstanceType, TokenHash: hash, CreatedAt: time.Now(),
		Settings: runner.Settings{Tags: tags, RunUntagged: true},
	})
	require.NoError(f.t, err)
	return created.ID, token
}

// ask sends a request for a job, and returns the id of the job; 0 for none.
func (f *admissionFixture) ask(address string, request map[string]any) int64 {
	f.t.Helper()
	body, err := json.Marshal(request)
	require.NoError(f.t, err)
	status, answer, err := post(f.t.Context(), "http://"+address+"/api/v4/jobs/request", string(body))
	require.NoError(f.t, err)
	if status != http.StatusCreated {
		require.Equal(f.t, http.StatusNoContent, status, answer)
		return 0
	}
	var given struct {
		ID int64 `json:"id"`
	}
	require.NoError(f.t, json.Unmarshal([]byte(answer), &given))
	return given.ID
}

// TestJobIsGivenOnlyAfterItsAdmissionAndOnlyToAcceptedRunners has the rights of the service, and two replicas.
func TestJobIsGivenOnlyAfterItsAdmissionAndOnlyToAcceptedRunners(t *testing.T) {
	t.Parallel()
	f := newAdmissionFixture(t)
	addresses := []string{f.start(f.cfg)["api"], f.start(f.cfg)["api"]}
	f.open()
	accepted, token := f.runner("linux", "zone_a")
	_, other := f.runner("linux", "zone_a")
	j := f.create("linux")
	require.Equal(t, job.Preparing, j.State)

	for _, request := range []map[string]any{
		{"token": token},
		{"token": token, "last_update": "x", "system_id": "s"},
		{"token": token, "job_id": j.ID, "state": "pending", "info": map[string]any{"name": "a", "config": map[string]any{
			"gpus": "all",
		}}},
		{"token": token, "id": j.ID, "admission": "accepted", "tags": []string{"linux"}},
	} {
		for _, address := range addresses {
			require.Zero(t, f.ask(address, request), "%v", request)
		}
	}
	require.Equal(t, job.Preparing, f.job(j.ID).State)

	// Decisions about another preparation, and about another job under the subject of this one, do not count.
	f.decide(j, func(d *events.AdmissionDecided) { d.Preparation++ })
	f.decide(j, func(d *events.AdmissionDecided) { d.JobID++ })
	f.publish(j, "status", events.AdmissionStatus{
		JobID: int(j.ID), Preparation: int(j.Revision), PipelineID: int(j.PipelineID), ProjectID: int(j.ProjectID),
		OrganizationID: int(j.OrganizationID), Prerequisite: events.AdmissionPrerequisite{
			ControllerID: 12, Name: "zones", Level: "group", Position: 1, State: "asked", Attempt: 1,
		},
	})
	views := postgres.Views{Pool: f.pool}
	require.Eventually(t, func() bool {
		list, err := views.Prerequisites(t.Context(), j.ID)
		return err == nil && len(list) == 1
	}, soon, 10*time.Millisecond)
	require.Equal(t, j, f.job(j.ID))

	f.decide(j, func(d *events.AdmissionDecided) {
		d.Tags, d.AddedTags, d.AcceptedRunnerIds = []string{"linux", "zone_a"}, []string{"zone_a"}, []int{int(accepted)}
	})
	admitted := f.await(j.ID, job.Pending)
	require.Equal(t, []string{"linux", "zone_a"}, admitted.Tags)
	for _, address := range addresses {
		require.Zero(t, f.ask(address, map[string]any{"token": other}), "the runner is not accepted")
	}
	require.Eventually(t, func() bool {
		return f.ask(addresses[0], map[string]any{"token": token}) == j.ID
	}, soon, 10*time.Millisecond)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		// Requests are held for 50 ms here. A claim that takes longer is released, and the next request gets the job.
		names := strings.ReplaceAll(strings.Join(f.events(j), " "), " running released", "")
		assert.Equal(c, "created preparing admitted pending running", names)
	}, soon, 10*time.Millisecond)
	require.Eventually(t, func() bool { return f.dead() == 1 }, soon, 10*time.Millisecond, "the event with the wrong job")
}

// dead returns the number of dead letters of the service.
func (f *admissionFixture) dead() int {
	f.t.Helper()
	stream, err := f.as(natsauth.PrincipalState).Stream(natstest.Context(f.t), topology.StreamDead)
	require.NoError(f.t, err)
	return int(stream.CachedInfo().State.Msgs)
}

// TestDecisionsTakeEffectOnceAcrossRestarts stops the service before decisions are published, and repeats them.
func TestDecisionsTakeEffectOnceAcrossRestarts(t *testing.T) {
	t.Parallel()
	f := newAdmissionFixture(t)
	_, stop := f.startUntil(f.cfg)
	f.open()
	first, second := f.create(), f.create()
	stop()
	for range 3 {
		f.decide(first, func(*events.AdmissionDecided) {})
		f.decide(second, func(d *events.AdmissionDecided) {
			d.Outcome = events.AdmissionOutcomeDenied
			d.Reasons = []events.AdmissionReason{{Controller: "zones", Text: "not today"}}
		})
	}
	f.start(f.cfg)
	f.start(f.cfg)
	f.await(first.ID, job.Pending)
	failed := f.await(second.ID, job.Failed)
	require.Equal(t, job.DeniedAdmission, failed.Reason)
	require.Equal(t, "zones: not today", failed.Admission.Reason)
	third := f.create()
	f.decide(third, func(*events.AdmissionDecided) {})
	f.await(third.ID, job.Pending) // all earlier decisions were read
	require.Eventually(t, func() bool { return len(f.events(third)) == 4 }, soon, 10*time.Millisecond)
	require.Equal(t, []string{"created", "preparing", "admitted", "pending"}, f.events(first))
	require.Equal(t, []string{"created", "preparing", "rejected"}, f.events(second))
}

// TestRunnersArePublished includes one that was stored by a version without the stream.
func TestRunnersArePublished(t *testing.T) {
	t.Parallel()
	f := newAdmissionFixture(t)
	_, stop := f.startUntil(f.cfg)
	f.open()
	store := postgres.Runners{Pool: f.pool, Encoder: f.encoder, Now: time.Now}
	earlier, _ := f.runner("linux")
	later, _ := f.runner()
	require.NoError(t, pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `UPDATE runners SET published = false, description = 'large' WHERE id = $1`, earlier)
		return err
	}))
	stop()
	f.start(f.cfg)
	changed, err := store.Read(t.Context(), later)
	require.NoError(t, err)
	changed.Paused = true
	_, err = store.Update(t.Context(), changed)
	require.NoError(t, err)
	latest := func() map[int64]events.RunnerChanged {
		found := map[int64]events.RunnerChanged{}
		stream, err := f.admission.Stream(natstest.Context(t), topology.StreamRunners)
		require.NoError(t, err)
		reader := stored.Reader{JetStream: f.admission, Stream: topology.StreamRunners}
		err = reader.Read(natstest.Context(t), cell.All(topology.FamilyRunner), 1, max(stream.CachedInfo().State.LastSeq, 1),
			func(m stored.Message) error {
				got, err := events.Decode[events.RunnerChanged](m.Data)
				if err == nil {
					found[int64(got.RunnerID)] = *got
				}
				return err
			})
		require.NoError(t, err)
		return found
	}
	require.Eventually(t, func() bool {
		all := latest()
		return all[earlier].Description == "large" && all[later].Paused && all[later].Revision == 2
	}, soon, 10*time.Millisecond)
	require.NoError(t, store.Delete(t.Context(), later))
	require.Eventually(t, func() bool { return latest()[later].Deleted }, soon, 10*time.Millisecond)
}
