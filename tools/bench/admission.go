package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/event"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/seal"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/admission"
	"lockstep.internal/services/admission/chain"
	"lockstep.internal/services/admission/controller"
	admissionstore "lockstep.internal/services/admission/postgres"
	"lockstep.internal/tools/stack"
)

// Projects of the benchmark, by the controllers that decide about their jobs.
const (
	onePolicyProject = int64(iota + 11)
	threePoliciesProject
	threeWebhooksProject
	silentProject
)

// admissionUser created the pipelines.
const admissionUser = 9

// admissionConcurrency is the number of requests to a web server at the same time, from the service and bare.
const admissionConcurrency = 32

// maxPublishing is the number of jobs that are published without an acknowledgement.
const maxPublishing = 500

// admissionJobs measures what controllers cost jobs.
func admissionJobs(ctx context.Context, f *fixture, size Size, measured Measured) {
	if size.wants("webhooks_per_s", "cel_per_s", "silent_p99_ms", "silent_mb") {
		check(onFixture(ctx, f.programs, func(f *fixture) {
			b := newAdmissionFixture(ctx, f)
			if size.wants("webhooks_per_s") {
				b.measureWebhooks(ctx, size, measured)
			}
			if size.wants("cel_per_s") {
				b.measurePolicies(ctx, size, measured)
			}
			if size.wants("silent_p99_ms", "silent_mb") {
				b.measureSilent(ctx, size, measured)
			}
		}))
	}
	if size.wants(addedFigures()...) {
		measureAdded(ctx, f, size, measured)
	}
}

// admissionFixture is the service admission with a database of its own. The benchmark stands in for runners and state.
type admissionFixture struct {
	f        *fixture
	url      string              // of the database
	runners  jetstream.JetStream // as the service runners
	service  *process
	store    admissionstore.Controllers
	key      seal.Key
	next     int // id of the next job
	decided  *timeline[int]
	received jetstream.ConsumeContext
}

func newAdmissionFixture(ctx context.Context, f *fixture) *admissionFixture {
	b := &admissionFixture{f: f, url: f.postgres(ctx), next: 1, decided: newTimeline[int]()}
	state, natsURL, keys := f.accounts(ctx)
	f.createConsumers(ctx, state)
	runnersKey := must(nats.NkeyOptionFromSeed(natsauth.SeedFile(keys, natsauth.PrincipalRunners)))
	inbox := nats.CustomInboxPrefix(natsauth.InboxPrefix(natsauth.PrincipalRunners))
	conn := f.connect(natsURL, runnersKey, inbox)
	b.runners = must(jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(maxPublishing)))
	publishDirectory(ctx, state)
	b.publish(ctx, benchCell.Runner(1), events.TypeRunnerChanged, events.RunnerChanged{
		RunnerID: 1, Revision: 1, Type: events.RunnerTypeInstanceType, RunUntagged: true,
	})

	seed, _, err := stack.InitAdmission(f.file("keys"))
	check(err)
	b.key = must(seal.ParseKey(must(config.SecretFile(seed).Read())))
	pool := f.pool(ctx, b.url, stack.Admission, must(admissionstore.Migrations())...)
	b.store = admissionstore.Controllers{Pool: pool, Now: time.Now}
	cfg := admission.DefaultConfig()
	cfg.Ops.Listen, cfg.API.Listen = loopback, loopback
	cfg.Cell.Name, cfg.Cell.PublicURL = string(benchCell), "http://127.0.0.1:1"
	databaseURL := f.file("database-url")
	check(os.WriteFile(databaseURL, []byte(b.url), 0o600))
	cfg.Database.URLFile = config.SecretFile(databaseURL)
	cfg.NATS.URL = config.URL(natsURL)
	cfg.NATS.NKeySeedFile = config.SecretFile(natsauth.SeedFile(keys, natsauth.PrincipalAdmission))
	cfg.Secrets.KeyFile = config.SecretFile(seed)
	cfg.Controllers.AllowPrivate = true
	b.service = f.start(ctx, stack.Admission, "--config", f.configuration(stack.Admission, &cfg))

	consumer := must(state.OrderedConsumer(ctx, topology.StreamAdmission, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{benchCell.Prefix(topology.FamilyAdmission) + ".*.*.decided"},
	}))
	b.received = must(consumer.Consume(b.receive))
	f.onEnd(b.received.Stop)
	return b
}

func publishDirectory(ctx context.Context, js jetstream.JetStream) {
	publishEvent(ctx, js, benchCell.Directory("organization", "1"), events.TypeDirectoryOrganization, "organization/1",
		events.DirectoryOrganization{OrganizationID: 1})
	publishEvent(ctx, js, benchCell.Directory("group", "2"), events.TypeDirectoryGroup, "group/2",
		events.DirectoryGroup{GroupID: 2, OrganizationID: 1})
	for _, p := range []int64{onePolicyProject, threePoliciesProject, threeWebhooksProject, silentProject} {
		id := strconv.FormatInt(p, 10)
		publishEvent(ctx, js, benchCell.Directory("project", id), events.TypeDirectoryProject, "project/"+id,
			events.DirectoryProject{ProjectID: int(p), OrganizationID: 1, GroupID: 2})
	}
}

// receive adds the job of a decision to the timeline.
func (b *admissionFixture) receive(m jetstream.Msg) {
	var d struct {
		JobID   int    `json:"job_id"`
		Outcome string `json:"outcome"`
	}
	err := json.Unmarshal(m.Data(), &d)
	if err == nil && d.Outcome != "admitted" {
		err = fmt.Errorf("job %d: %s", d.JobID, m.Data())
	}
	b.decided.add(d.JobID, time.Now(), err)
}

// publish publishes an event of the service runners.
func (b *admissionFixture) publish(ctx context.Context, subject, eventType string, data any) {
	must(b.runners.PublishMsg(ctx, runnersEvent(subject, eventType, data)))
}

func runnersEvent(subject, eventType string, data any) *nats.Msg {
	return must(event.Encode(must(event.New(event.Attributes{
		Type: eventType, Source: event.ServiceSource(string(benchCell), "runners"), Subject: subject, ID: subject,
		Time: time.Now(),
	}, data)), subject))
}

// preparing returns the event of the next job of a project, and its id.
func (b *admissionFixture) preparing(project int64) (*nats.Msg, int) {
	id, now := b.next, time.Now().UTC()
	b.next++
	return runnersEvent(benchCell.Job(project, int64(id), "preparing"), events.TypeJobPreparing, events.JobPreparing{
		Job: events.Job{
			JobID: id, PipelineID: 1, ProjectID: int(project), OrganizationID: 1, Name: "test", Stage: "test",
			State: events.JobStatePreparing, Revision: 2, Attempt: 1, TimeoutS: 3600, CreatedAt: now, PreparingSince: &now,
		},
		Preparation: 1, UserID: admissionUser, Ref: "main", Source: "api", Deadline: now.Add(time.Hour),
		Variables: map[string]string{
			"CI_JOB_ID": strconv.Itoa(id), "CI_PROJECT_ID": strconv.FormatInt(project, 10), "CI_PROJECT_PATH": "o/g/p",
			"CI_PROJECT_NAMESPACE": "o/g", "GITLAB_USER_ID": strconv.Itoa(admissionUser), "GITLAB_USER_LOGIN": "ada",
		},
	}), id
}

// prepare lets jobs of a project begin admission, and returns their first id.
func (b *admissionFixture) prepare(ctx context.Context, project int64, jobs int) int {
	first := b.next
	for i := range jobs {
		message, _ := b.preparing(project)
		must(b.runners.PublishMsgAsync(message))
		if i%maxPublishing == maxPublishing-1 {
			published(ctx, b.runners)
		}
	}
	published(ctx, b.runners)
	return first
}

// rate returns how many jobs of a project are decided about in a second.
func (b *admissionFixture) rate(ctx context.Context, project int64, jobs int) float64 {
	began := time.Now()
	first := b.prepare(ctx, project, jobs)
	left := jobs
	b.decided.first(ctx, func(id int) bool {
		if id >= first {
			left--
		}
		return left == 0
	})
	return perSecond(jobs, began)
}

// latency returns the milliseconds from the publish of a job to its decision.
func (b *admissionFixture) latency(ctx context.Context, project int64) float64 {
	message, want := b.preparing(project)
	began := time.Now()
	must(b.runners.PublishMsg(ctx, message))
	return milliseconds(b.decided.first(ctx, func(id int) bool { return id == want }).Sub(began))
}

// addController creates a controller of a project.
func (b *admissionFixture) addController(ctx context.Context, project int64, settings controller.Settings) {
	settings.Mutating = true
	settings = settings.WithDefaults()
	check(settings.Validate())
	must(b.store.Create(ctx, controller.Owner{Level: chain.LevelProject, ID: project}, settings, 1,
		func(id int64) ([]byte, error) {
			if settings.Webhook == nil {
				return []byte{}, nil
			}
			return controller.SealSecret(controller.NewSecret(), id, b.key)
		}))
}

func webhookSettings(name, url string) controller.Settings {
	return controller.Settings{
		Name: name, Timeout: time.Hour,
		Webhook: &controller.Webhook{URL: url, Concurrency: admissionConcurrency},
	}
}

// acceptingServer starts a web server that accepts each job at once.
func acceptingServer(ctx context.Context, f *fixture) (address string) {
	return controllerServer(ctx, f, func(w http.ResponseWriter, job int64) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `[{"id": %d, "admission": "accepted"}]`, job)
	})
}

func controllerServer(ctx context.Context, f *fixture, answer func(http.ResponseWriter, int64)) (address string) {
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			var jobs []struct {
				ID int64 `json:"id"`
			}
			body, err := io.ReadAll(r.Body)
			if err != nil || json.Unmarshal(body, &jobs) != nil || len(jobs) != 1 {
				http.Error(w, "not an array of one job", http.StatusBadRequest)
				return
			}
			answer(w, jobs[0].ID)
		})}
	listener := must(new(net.ListenConfig).Listen(ctx, "tcp", loopback))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(listener) // ends with Close
	}()
	f.onClose(func(context.Context) error {
		err := server.Close()
		<-ended
		return err //nolint:wrapcheck // shown as it is
	})
	return listener.Addr().String()
}

// benchPolicy accepts each job after three expressions.
const benchPolicy = `
data: {users: {ada: [linux], eve: [windows]}}
rules:
  - if: job.name.startsWith("deploy") && !job.protected
    deny: true
    reason: deploys are for protected branches
  - if: user.login == "eve"
    deny: true
    reason: not for this user
  - if: user.login in data.users
    allow: true
`

// numbered returns a name with a number.
func numbered(name string, n int) string { return strings.Join([]string{name, strconv.Itoa(n)}, "-") }
