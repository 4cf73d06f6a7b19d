package gitlab_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"strconv"
	"sync"
	"time"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/jobtoken"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/gitlab"
	"lockstep.internal/services/runners/trace"
	"lockstep.internal/services/runners/wire"
	"lockstep.internal/tools/testkit/runnerreplay"
)

const (
	registration = "registration"
	traceLimit   = 4000
	uploadLimit  = 1 << 20
)

// memory implements the interfaces of the handler. Traces follow the rules of package trace; the rest is the least that
// the contract asks for.
type memory struct {
	mu      sync.Mutex
	runners map[string]string // token → system_id of the last contact
	pending []*job
	jobs    map[int64]*job
	// changed is closed and replaced when a job becomes pending.
	changed chan struct{}
	// waiting receives when a request begins to wait.
	waiting chan struct{}
	// fail is returned by the next call, if it is not nil.
	fail error
	// askAgain makes so many updates wait.
	askAgain    int
	off         bool
	resets      int
	traceLimit  int64
	uploadLimit int64
	// location of artifacts; empty means here. broken downloads end early.
	location string
	broken   bool
}

type job struct {
	runnerreplay.Job

	id       int64
	runner   string
	status   wire.JobStatus
	trace    trace.State
	mask     *trace.Mask
	stored   []byte
	artifact []byte
	upload   gitlab.Upload
	final    wire.UpdateRequest
}

func newMemory() *memory {
	return &memory{
		runners: map[string]string{"glrt-one": ""}, jobs: map[int64]*job{}, changed: make(chan struct{}),
		waiting: make(chan struct{}, 100), traceLimit: traceLimit, uploadLimit: uploadLimit,
	}
}

func refused(what string) error { return fault.New(errcode.PermissionDenied, "%s is not valid", what) }

// failure returns the failure that a test wants, once.
func (m *memory) failure() error {
	err := m.fail
	m.fail = nil
	return err
}

func (m *memory) runner(token string) error {
	if err := m.failure(); err != nil {
		return err
	}
	if _, known := m.runners[token]; !known {
		return refused("the token of the runner")
	}
	return nil
}

func (m *memory) Verify(_ context.Context, token, systemID string) (wire.Runner, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.runner(token); err != nil {
		return wire.Runner{}, err
	}
	m.runners[token] = systemID
	return wire.Runner{ID: 7, Token: token}, nil
}

func (m *memory) Register(_ context.Context, r wire.RegisterRequest) (wire.Runner, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.off:
		return wire.Runner{}, gitlab.ErrRegistrationOff
	case r.Token != registration:
		return wire.Runner{}, refused("the registration token")
	}
	m.runners["glrt-registered"] = ""
	return wire.Runner{ID: 8, Token: "glrt-registered"}, nil
}

func (m *memory) Create(_ context.Context, user string, r wire.CreateRunnerRequest) (wire.Runner, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if user != "lsp_user" {
		return wire.Runner{}, fault.New(errcode.Unauthenticated, "the token is not valid")
	}
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	name := "glrt-" + string(r.Type)
	m.runners[name] = ""
	return wire.Runner{ID: 9, Token: name, TokenExpiresAt: &at}, nil
}

func (m *memory) ResetToken(_ context.Context, token string) (wire.ResetToken, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.runner(token); err != nil {
		return wire.ResetToken{}, err
	}
	m.resets++
	next := "glrt-reset-0123456789-" + strconv.Itoa(m.resets) // real runners expect long tokens
	m.runners[next] = m.runners[token]
	delete(m.runners, token)
	return wire.ResetToken{Token: next}, nil
}

func (m *memory) Delete(_ context.Context, token string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.runner(token); err != nil {
		return err
	}
	delete(m.runners, token)
	return nil
}

func (m *memory) DeleteManager(_ context.Context, token, systemID string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.runner(token); err != nil {
		return err
	}
	if m.runners[token] != systemID {
		return fault.New(errcode.NotFound, "the manager does not exist")
	}
	m.runners[token] = ""
	return nil
}

// offer makes a job pending and wakes requests.
func (m *memory) offer(_ context.Context, j runnerreplay.Job) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	values := []string{}
	for _, value := range j.Masked {
		values = append(values, value)
	}
	m.pending = append(m.pending, &job{Job: j, mask: trace.NewMask(values)})
	close(m.changed)
	m.changed = make(chan struct{})
	return nil
}

func (m *memory) Request(ctx context.Context, r wire.JobRequest) (*wire.Job, string, error) {
	for first := true; ; first = false {
		m.mu.Lock()
		if err := m.runner(r.Token); err != nil {
			m.mu.Unlock()
			return nil, "", err
		}
		if len(m.pending) > 0 {
			given := m.give(r.Token)
			m.mu.Unlock()
			return given, "one/i/8", nil
		}
		changed := m.changed
		m.mu.Unlock()
		if first {
			select {
			case m.waiting <- struct{}{}:
			default:
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, "one/i/7", nil
		}
	}
}

func (m *memory) give(runner string) *wire.Job {
	j := m.pending[0]
	m.pending = m.pending[1:]
	j.id, j.status, j.runner = int64(500+len(m.jobs)), wire.StatusRunning, runner
	m.jobs[j.id] = j
	w := wire.NewJob(j.id, j.token())
	w.JobInfo = wire.JobInfo{ID: j.id, Name: j.Name, Stage: j.Stage, ProjectID: 3}
	w.RunnerInfo.Timeout = int64(cmp.Or(j.TimeoutSeconds, 60))
	w.Features.FailureReasons = []string{"script_failure", "job_execution_timeout"}
	w.Steps = append(w.Steps, wire.Step{Name: wire.StepScript, Script: j.Script, Timeout: 60, When: wire.OnSuccess})
	if len(j.AfterScript) > 0 {
		w.Steps = append(w.Steps, wire.Step{
			Name: wire.StepAfterScript, Script: j.AfterScript, Timeout: 30, When: wire.Always,
		})
	}
	for key, value := range j.Masked {
		w.Variables = append(w.Variables, wire.Variable{Key: key, Value: value, Masked: true})
	}
	if len(j.ArtifactPaths) > 0 {
		w.Artifacts = append(w.Artifacts, wire.Artifact{
			Name: "default", Paths: j.ArtifactPaths, When: wire.OnSuccess, Type: "archive", Format: "zip",
		})
	}
	for _, name := range j.Dependencies {
		for _, other := range m.jobs {
			if other.Name == name {
				w.Dependencies = append(w.Dependencies, wire.Dependency{
					ID: other.id, Token: j.token(), Name: name,
					ArtifactsFile: wire.ArtifactsFile{Filename: other.upload.Filename, Size: int64(len(other.artifact))},
				})
			}
		}
	}
	return &w
}

func (j *job) token() string { return "glcbt-0123456789-" + strconv.FormatInt(j.id, 10) }

func (j *job) state() gitlab.JobState {
	return gitlab.JobState{Status: j.status, Interval: 3 * time.Second}
}

func (j *job) ended() bool {
	return j.status != wire.StatusRunning && j.status != wire.StatusCanceling
}

// end sets the state of a running job.
func (m *memory) end(status wire.JobStatus) func(context.Context, int64) error {
	return func(_ context.Context, id int64) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.jobs[id].status = status
		return nil
	}
}

// find returns the job of a token.
func (m *memory) find(ref gitlab.JobRef) (*job, error) {
	if err := m.failure(); err != nil {
		return nil, err
	}
	j := m.jobs[ref.ID]
	if j == nil {
		return nil, fault.New(errcode.NotFound, "job %d does not exist", ref.ID)
	}
	if ref.Token != j.token() {
		return nil, refused("the token of the job")
	}
	return j, nil
}

func (m *memory) Authentic(_ context.Context, ref gitlab.JobRef) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, err := m.find(ref)
	return err
}

func (m *memory) Authorize(_ context.Context, ref gitlab.JobRef, scope jobtoken.Scope) (gitlab.JobState, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	j, err := m.find(ref)
	switch {
	case err != nil:
		return gitlab.JobState{}, err
	case scope != jobtoken.ScopeTrace && scope != jobtoken.ScopeUpload:
		return gitlab.JobState{}, errors.New("unexpected scope")
	case j.ended():
		return j.state(), fault.New(errcode.PermissionDenied, "job %d has ended", j.id)
	}
	return j.state(), nil
}

func (m *memory) Update(
	_ context.Context, ref gitlab.JobRef, r wire.UpdateRequest,
) (gitlab.UpdateResult, gitlab.JobState, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	j, err := m.find(ref)
	if err != nil {
		return 0, gitlab.JobState{}, err
	}
	if j.ended() || r.State == wire.UpdateRunning {
		return gitlab.Stored, j.state(), nil
	}
	if m.askAgain > 0 {
		m.askAgain--
		return gitlab.AskAgain, j.state(), nil
	}
	report := trace.Report{Size: j.trace.Size}
	if sum, size := r.Trace(); sum != nil {
		report.Checked, report.CRC = true, *sum
		if size != nil {
			report.Size = *size
		}
	}
	next, write, done, err := j.trace.Finish(j.mask, report)
	if err != nil {
		return 0, j.state(), err
	}
	j.store(write)
	j.trace, j.final = next, r
	if !done {
		j.stored = nil
		return gitlab.ResendTrace, j.state(), nil
	}
	switch {
	case j.status == wire.StatusCanceling:
		j.status = wire.StatusCanceled
	case r.State == wire.UpdateFailed:
		j.status = wire.StatusFailed
	default:
		j.status = wire.StatusSuccess
	}
	return gitlab.Stored, j.state(), nil
}

func (j *job) store(w trace.Write) { j.stored = append(j.stored[:w.Offset], w.Data...) }

func (m *memory) AppendTrace(
	_ context.Context, ref gitlab.JobRef, offset int64, part []byte,
) (int64, gitlab.JobState, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	j, err := m.find(ref)
	if err != nil {
		return 0, gitlab.JobState{}, err
	}
	if j.ended() {
		return 0, j.state(), fault.New(errcode.PermissionDenied, "job %d has ended", j.id)
	}
	next, write, err := j.trace.Append(j.mask, offset, part, m.traceLimit)
	if errors.Is(err, trace.ErrTooLarge) {
		j.status = wire.StatusFailed
	}
	if err != nil {
		return 0, j.state(), err
	}
	j.store(write)
	j.trace = next
	return next.Size, j.state(), nil
}

func (m *memory) Store(
	_ context.Context, ref gitlab.JobRef, upload gitlab.Upload, content io.Reader,
) (gitlab.JobState, error) {
	raw, err := io.ReadAll(io.LimitReader(content, m.uploadLimit+1))
	if err != nil {
		return gitlab.JobState{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	j, err := m.find(ref)
	if err != nil {
		return gitlab.JobState{}, err
	}
	if int64(len(raw)) > m.uploadLimit {
		return j.state(), fault.New(errcode.PayloadTooLarge, "the artifact has more than %d bytes", m.uploadLimit)
	}
	j.artifact, j.upload = raw, upload
	return j.state(), nil
}

func (m *memory) Open(_ context.Context, ref gitlab.JobRef, direct bool) (gitlab.Download, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.failure(); err != nil {
		return gitlab.Download{}, err
	}
	j := m.jobs[ref.ID]
	if j == nil || j.artifact == nil {
		return gitlab.Download{}, fault.New(errcode.NotFound, "job %d has no artifacts", ref.ID)
	}
	if direct && m.location != "" {
		return gitlab.Download{Location: m.location}, nil
	}
	content := j.artifact
	if m.broken {
		content = content[:len(content)/2]
	}
	return gitlab.Download{
		Filename: j.upload.Filename, Size: int64(len(j.artifact)), Content: io.NopCloser(bytes.NewReader(content)),
	}, nil
}
