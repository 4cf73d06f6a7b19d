package admission_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsauth/natsadmin"
	"lockstep.internal/libs/stored"
	"lockstep.internal/schemas/gen/events"
	admissionv1 "lockstep.internal/schemas/gen/lockstep/admission/v1"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/tools/replay"
	"lockstep.internal/tools/stack"
)

// controller is a web server that decides about jobs. It adds a tag with its name to each.
type controller struct {
	t      testing.TB
	name   string
	server *httptest.Server
	// answer is called for each request with the number of those about its job, from 1.
	answer func(w http.ResponseWriter, r question)
	// asked gets a value with each request.
	asked chan<- struct{}

	mu        sync.Mutex
	questions map[int64][]question
}

// question is a request about a job.
type question struct {
	*controller

	job    int64
	tags   []string
	number int
	header http.Header
}

func newController(
	t testing.TB, name string, asked chan<- struct{}, answer func(http.ResponseWriter, question),
) *controller {
	t.Helper()
	c := &controller{t: t, name: name, answer: answer, asked: asked, questions: map[int64][]question{}}
	c.server = httptest.NewServer(c)
	t.Cleanup(c.server.Close)
	return c
}

// ServeHTTP implements [http.Handler].
func (c *controller) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var jobs []struct {
		ID   int64    `json:"id"`
		Tags []string `json:"tags"`
	}
	if err := json.NewDecoder(r.Body).Decode(&jobs); err != nil || len(jobs) != 1 {
		return // the service was killed while it sent the request
	}
	c.mu.Lock()
	q := question{
		controller: c, job: jobs[0].ID, tags: jobs[0].Tags, number: len(c.questions[jobs[0].ID]) + 1, header: r.Header,
	}
	c.questions[q.job] = append(c.questions[q.job], q)
	c.mu.Unlock()
	select {
	case c.asked <- struct{}{}:
	case <-r.Context().Done():
	}
	c.answer(w, q)
}

func (c *controller) questionsOf(job int64) []question {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.questions[job])
}

// accept is the answer of the controller about a job.
func (q question) accept() string {
	return fmt.Sprintf(`[{"id": %d, "admission": "accepted", "tags": {"add": [%q]}, "reason": %q}]`, q.job, q.name,
		"checked by "+q.name)
}

func (q question) write(w http.ResponseWriter, answer string) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, answer)
}

// callBack accepts the job later, and repeats that until the service has an answer. It returns the status; 0 if ctx has
// ended.
func (q question) callBack(ctx context.Context, httpClient *http.Client) int {
	for {
		status := q.tryCallBack(ctx, httpClient)
		if status != 0 && status < http.StatusInternalServerError || ctx.Err() != nil {
			return status
		}
		pause := time.NewTimer(20 * time.Millisecond)
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
	}
}

// tryCallBack returns 0 if the service does not answer.
func (q question) tryCallBack(ctx context.Context, httpClient *http.Client) int {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, q.header.Get("Lockstep-Callback-Url"),
		strings.NewReader(q.accept()))
	if err != nil {
		q.t.Error(err)
		return http.StatusBadRequest
	}
	request.Header.Set("Authorization", "Bearer "+q.header.Get("Lockstep-Callback-Token"))
	request.Header.Set("Content-Type", "application/json")
	response, err := httpClient.Do(request)
	if err != nil {
		return 0
	}
	_ = response.Body.Close()
	return response.StatusCode
}

// callbacks answers questions later.
type callbacks struct {
	http  *http.Client
	ctx   context.Context
	group sync.WaitGroup

	mu sync.Mutex
	// statuses of the last responses to callbacks, by job.
	statuses map[int64][]int
}

func newCallbacks(t testing.TB) *callbacks {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	transport := &http.Transport{MaxIdleConnsPerHost: 20}
	c := &callbacks{http: &http.Client{Transport: transport}, ctx: ctx, statuses: map[int64][]int{}}
	t.Cleanup(func() {
		cancel()
		c.group.Wait()
		transport.CloseIdleConnections()
	})
	return c
}

// later is the answer of a controller that answers by a callback.
func (c *callbacks) later(w http.ResponseWriter, q question) {
	w.WriteHeader(http.StatusAccepted)
	c.group.Go(func() {
		status := q.callBack(c.ctx, c.http)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.statuses[q.job] = append(c.statuses[q.job], status)
	})
}

// succeeded returns how many callbacks about a job were the first.
func (c *callbacks) succeeded(job int64) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, status := range c.statuses[job] {
		if status == http.StatusNoContent {
			n++
		}
	}
	return n
}

func at(
	level admissionv1.ControllerLevel, owner int64, s *admissionv1.ControllerSettings,
) *admissionv1.CreateControllerRequest {
	s.Mutating = true
	return &admissionv1.CreateControllerRequest{Level: level, OwnerId: owner, Settings: s}
}

func (c *controller) settings() *admissionv1.ControllerSettings {
	return &admissionv1.ControllerSettings{
		Name: c.name, MaxAttempts: 20, Webhook: &admissionv1.Webhook{
			Url: c.server.URL, RequestTimeout: durationpb.New(3 * time.Second), Concurrency: 50,
		},
	}
}

// create creates a controller.
func (c *cell) create(request *admissionv1.CreateControllerRequest) {
	c.t.Helper()
	_, err := c.admission.Controllers.CreateController(c.t.Context(), connect.NewRequest(request))
	require.NoError(c.t, err)
}

// each calls take with the messages of a family of subjects.
func (c *cell) each(family string, take func(stored.Message) error) {
	c.t.Helper()
	conn, err := nats.Connect(c.natsURL, natsadmin.Key(c.t, c.natsDir))
	require.NoError(c.t, err)
	defer conn.Close()
	js, err := jetstream.New(conn)
	require.NoError(c.t, err)
	require.NoError(c.t, replay.Run(c.t.Context(), js, stack.Cell, replay.Options{Subject: family + ".>"}, take))
}

// decisions returns the decisions about each job on the stream ADMISSION.
func (c *cell) decisions() map[int64][]events.AdmissionDecided {
	c.t.Helper()
	out := map[int64][]events.AdmissionDecided{}
	c.each("admission", func(m stored.Message) error {
		if !strings.HasSuffix(m.Subject, ".decided") {
			return nil
		}
		var d events.AdmissionDecided
		if err := json.Unmarshal(m.Data, &d); err != nil {
			return fmt.Errorf("decode %s: %w", m.Subject, err)
		}
		out[int64(d.JobID)] = append(out[int64(d.JobID)], d)
		return nil
	})
	return out
}

// history returns the names of the events of each job on the stream JOBS, in their order.
func (c *cell) history() map[int64][]string {
	c.t.Helper()
	out := map[int64][]string{}
	c.each("job", func(m stored.Message) error {
		tokens := strings.Split(m.Subject, ".")
		id, err := strconv.ParseInt(tokens[len(tokens)-2], 10, 64)
		if err != nil {
			return fmt.Errorf("subject %s: %w", m.Subject, err)
		}
		out[id] = append(out[id], tokens[len(tokens)-1])
		return nil
	})
	return out
}

// TestKilledServicesAdmitEachJobOnce kills every service, PostgreSQL and NATS, again and again, while 500 jobs are in
// different steps of a chain of five controllers. NATS acknowledges what it has given to the operating system: a killed
// process does not lose it.
func TestKilledServicesAdmitEachJobOnce(t *testing.T) {
	t.Parallel()
	const pipelines, parallel, rounds = 5, 100, 2
	keys := filepath.Join(t.TempDir(), "nats")
	report, err := natsauth.Init(keys, natsauth.Options{
		Cell: stack.Cell, Principals: []natsauth.StaticPrincipal{natsadmin.Principal()},
	})
	require.NoError(t, err)
	server := fixture.StartNATSServer(t, report.ConfigFile, fixture.HoldPort(t))
	c := startWith(t, stack.Options{
		Programs: fixture.BuildReleaseServices(t), NATSURL: server.URL(), NATSDir: keys,
	})
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	second, err := c.AddReplica(ctx, stack.Admission)
	require.NoError(t, err)
	asked := make(chan struct{}, 1<<16)
	later := newCallbacks(t)
	atOnce := newController(t, "at-once", asked, func(w http.ResponseWriter, q question) { q.write(w, q.accept()) })
	slow := newController(t, "slow", asked, func(w http.ResponseWriter, q question) {
		pause := time.NewTimer(300 * time.Millisecond)
		<-pause.C
		q.write(w, q.accept())
	})
	wrongFirst := newController(t, "wrong-first", asked, func(w http.ResponseWriter, q question) {
		if q.number == 1 {
			q.write(w, `[{"id": 1, "admission": "accepted"}]`)
			return
		}
		q.write(w, q.accept())
	})
	calling := newController(t, "later", asked, later.later)
	const (
		project  = admissionv1.ControllerLevel_CONTROLLER_LEVEL_PROJECT
		group    = admissionv1.ControllerLevel_CONTROLLER_LEVEL_GROUP
		instance = admissionv1.ControllerLevel_CONTROLLER_LEVEL_INSTANCE
	)
	c.runner("for all", "at-once", "policy", "slow", "wrong-first", "later")
	c.create(at(project, c.project, atOnce.settings()))
	c.create(at(group, c.group, &admissionv1.ControllerSettings{Name: "policy", Policy: `
rules:
  - if: job.name.endsWith("7/100")
    deny: true
    reason: not today
  - add_tags: [policy]
`}))
	c.create(at(group, c.group, slow.settings()))
	c.create(at(instance, 0, wrongFirst.settings()))
	c.create(at(instance, 0, calling.settings()))

	kill := func(name string) func() error {
		return func() error {
			if err := c.Kill(name); err != nil {
				return fmt.Errorf("kill %s: %w", name, err)
			}
			return c.StartService(ctx, name)
		}
	}
	victims := []func() error{
		kill(stack.Admission), kill(stack.Runners), kill(second),
		func() error {
			server.Kill()
			return server.Start()
		},
		kill(stack.State),
		func() error {
			c.Database().Kill()
			return c.Database().Restart(ctx)
		},
	}
	var created []*runnersv1.Pipeline
	for round := range rounds {
		for i, victim := range victims {
			if len(created) < pipelines {
				created = append(created, c.parallelPipeline(ctx, parallel))
			}
			// The next one is killed in the middle of requests.
			for range 60 {
				select {
				case <-asked:
				case <-ctx.Done():
					require.FailNow(t, "the controllers are not asked", "round %d, victim %d", round, i)
				}
			}
			require.NoError(t, victim(), "round %d, victim %d", round, i)
		}
	}
	var jobs []*runnersv1.Job
	for _, p := range created {
		jobs = append(jobs, c.decidedJobs(p.GetId())...)
	}
	require.Len(t, jobs, pipelines*parallel)
	decisions, history := c.decisions(), c.history()
	for _, j := range jobs {
		id := j.GetId()
		require.Len(t, decisions[id], 1, "job %d is decided once", id)
		d := decisions[id][0]
		if strings.HasSuffix(j.GetName(), "7/100") {
			require.Equal(t, runnersv1.JobState_JOB_STATE_FAILED, j.GetState(), j)
			require.Contains(t, j.GetAdmission().GetReason(), "not today")
			require.Equal(t, events.AdmissionOutcomeDenied, d.Outcome)
			require.Empty(t, slow.questionsOf(id), "a job that is denied is not asked about any more")
			require.Equal(t, []string{"created", "preparing", "rejected"}, history[id])
			continue
		}
		require.Equal(t, runnersv1.JobState_JOB_STATE_PENDING, j.GetState(), j)
		require.Equal(t, []string{"created", "preparing", "admitted", "pending"}, history[id])
		want := []string{"at-once", "later", "policy", "slow", "wrong-first"}
		require.Equal(t, want, slices.Sorted(slices.Values(j.GetTags())), j)
		require.Equal(t, want, slices.Sorted(slices.Values(d.Tags)))
		require.Len(t, d.Prerequisites, 5)
		for _, p := range d.Prerequisites {
			require.Equal(t, events.AdmissionStateAccepted, p.State, "%d: %+v", id, p)
		}
		// It is 0 if the service was killed after it had stored the answer.
		require.LessOrEqual(t, later.succeeded(id), 1, "job %d", id)
		requireSeen(t, id, atOnce, 0)
		requireSeen(t, id, slow, 2)
		requireSeen(t, id, wrongFirst, 3)
		requireSeen(t, id, calling, 4)
	}
}

// requireSeen checks that a controller was asked, each time after the answers of those before it.
func requireSeen(t testing.TB, job int64, by *controller, tags int) {
	t.Helper()
	questions := by.questionsOf(job)
	require.NotEmpty(t, questions, "job %d was not asked about at %s", job, by.name)
	for _, q := range questions {
		require.Len(t, q.tags, tags, "%s was asked about job %d before the others had answered", by.name, job)
	}
}

// parallelPipeline creates a pipeline with jobs that wait for admission at once. It tries again while the service
// starts.
func (c *cell) parallelPipeline(ctx context.Context, jobs int) *runnersv1.Pipeline {
	c.t.Helper()
	var made *runnersv1.Pipeline
	require.Eventually(c.t, func() bool {
		created, err := c.runners.Pipelines.CreatePipeline(ctx, connect.NewRequest(&runnersv1.CreatePipelineRequest{
			ProjectId: c.project, File: fmt.Appendf(nil, "test: {script: [make], parallel: %d}\n", jobs), Ref: "main",
		}))
		if err != nil {
			c.t.Logf("create a pipeline: %v", err)
			return false
		}
		made = created.Msg.GetPipeline()
		return true
	}, soon, 50*time.Millisecond)
	return made
}

// decidedJobs returns the jobs of a pipeline once none waits for admission.
func (c *cell) decidedJobs(pipeline int64) []*runnersv1.Job {
	c.t.Helper()
	var jobs []*runnersv1.Job
	require.Eventually(c.t, func() bool {
		got, err := c.runners.Pipelines.GetPipeline(c.t.Context(),
			connect.NewRequest(&runnersv1.GetPipelineRequest{Id: pipeline}))
		if err != nil {
			c.t.Logf("get pipeline %d: %v", pipeline, err)
			return false
		}
		jobs = got.Msg.GetPipeline().GetJobs()
		return !slices.ContainsFunc(jobs, func(j *runnersv1.Job) bool {
			return j.GetState() == runnersv1.JobState_JOB_STATE_CREATED ||
				j.GetState() == runnersv1.JobState_JOB_STATE_PREPARING
		})
	}, soon, 50*time.Millisecond)
	return jobs
}
