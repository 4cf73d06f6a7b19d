package admission_test

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	admissionv1 "lockstep.internal/schemas/gen/lockstep/admission/v1"
	"lockstep.internal/tools/testkit/port"
	"lockstep.internal/tools/testkit/programs"
)

// replica is the real program as a process that a test kills.
type replica struct {
	t       *testing.T
	path    string
	environ []string
	process *exec.Cmd
}

func (f *fixture) replica(path, listen, publicURL string) *replica {
	f.t.Helper()
	r := &replica{t: f.t, path: path, environ: append(os.Environ(),
		"LOCKSTEP_OPS_LISTEN=127.0.0.1:0", "LOCKSTEP_API_LISTEN="+listen, "LOCKSTEP_CELL_PUBLIC_URL="+publicURL,
		"LOCKSTEP_DATABASE_URL="+f.cfg.Database.URL.Reveal(), "LOCKSTEP_NATS_URL="+f.cfg.NATS.URL.Reveal(),
		"LOCKSTEP_NATS_NKEY_SEED_FILE="+f.cfg.NATS.NKeySeedFile.Path(),
		"LOCKSTEP_SECRETS_KEY_FILE="+f.cfg.Secrets.KeyFile.Path(), "LOCKSTEP_CONTROLLERS_ALLOW_PRIVATE=true")}
	f.t.Cleanup(r.kill)
	return r
}

func (r *replica) start() {
	r.t.Helper()
	r.process = exec.Command(r.path)
	r.process.Env, r.process.Stdout, r.process.Stderr = r.environ, io.Discard, r.t.Output()
	require.NoError(r.t, r.process.Start())
}

// kill ends the process with SIGKILL.
func (r *replica) kill() {
	if r.process != nil {
		_ = r.process.Process.Kill()
		_ = r.process.Wait()
		r.process = nil
	}
}

// Two replicas are killed again and again while jobs go through a chain of a web server that answers at once, a policy
// and one that answers later. No job is admitted without all answers, none is lost, none is decided twice.
func TestKilledReplicasLoseAndRepeatNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	stop := f.start()
	folder, err := programs.Build(t.Context(), "admission", "-race", "lockstep.internal/services/admission/cmd/admission")
	require.NoError(t, err)
	first := newWebServer(t, answering(`[{"id": JOB, "admission": "accepted", "tags": {"add": ["first"]}}]`))
	var mu sync.Mutex
	pending := map[int]received{}
	last := newWebServer(t, func(w http.ResponseWriter, r received) {
		mu.Lock()
		defer mu.Unlock()
		pending[r.job] = r
		w.WriteHeader(http.StatusAccepted)
	})
	for _, s := range []struct {
		level    admissionv1.ControllerLevel
		owner    int64
		settings *admissionv1.ControllerSettings
	}{
		{project, projectID, first.settings("first")},
		{group, innerGroup, &admissionv1.ControllerSettings{
			Name: "policy", Mutating: true, Policy: "rules:\n  - {add_tags: [policy]}\n",
		}},
		{instance, 0, last.settings("last")},
	} {
		if s.settings.GetWebhook() != nil {
			s.settings.Webhook.RequestTimeout = durationpb.New(time.Second)
			s.settings.MaxAttempts = 20
		}
		f.create(s.level, s.owner, s.settings)
	}
	stop()
	f.runner(events.RunnerChanged{
		RunnerID: 50, Revision: 1, Type: events.RunnerTypeInstanceType, Tags: []string{"docker", "first", "policy"},
	})
	held, err := port.Hold()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, held.Release()) })
	listen := held.Address()
	replicas := []*replica{
		f.replica(filepath.Join(folder, "admission"), listen, "http://"+listen),
		f.replica(filepath.Join(folder, "admission"), "127.0.0.1:0", "http://"+listen),
	}
	const jobs, kills = 40, 8
	for i := range kills {
		r := replicas[i%2]
		r.kill()
		r.start()
		for id := range jobs / kills {
			f.prepare(prepared(9001+i*jobs/kills+id, "docker"))
		}
		// The next kill comes when a request of this round was sent: in the middle of the others.
		require.Eventually(t, func() bool { return len(first.received()) > i*jobs/kills }, 3*soon, time.Millisecond)
	}
	for _, r := range replicas {
		r.kill()
		r.start()
	}
	var decided events.AdmissionDecided
	require.Eventually(t, func() bool {
		mu.Lock()
		waiting := make([]received, 0, len(pending))
		for _, r := range pending {
			waiting = append(waiting, r)
		}
		clear(pending)
		mu.Unlock()
		for _, r := range waiting {
			if status := tryCallBack(r); status != http.StatusNoContent && status != http.StatusConflict {
				mu.Lock()
				if _, newer := pending[r.job]; !newer {
					pending[r.job] = r
				}
				mu.Unlock()
			}
		}
		for id := range jobs {
			if !f.decision(9001+id, &decided) {
				return false
			}
		}
		return true
	}, 12*soon, 50*time.Millisecond)
	for id := range jobs {
		require.True(t, f.decision(9001+id, &decided))
		require.Equal(t, events.AdmissionOutcomeAdmitted, decided.Outcome, "%+v", decided)
		require.Equal(t, []string{"docker", "first", "policy"}, decided.Tags)
		require.Len(t, decided.Prerequisites, 3)
		for _, p := range decided.Prerequisites {
			require.Equal(t, events.AdmissionStateAccepted, p.State)
		}
		require.Equal(t, 1, f.decisions(9001+id), "job %d was decided several times", 9001+id)
	}
}

// decisions returns the number of decisions about a job on the stream.
func (f *fixture) decisions(jobID int) int {
	stream, err := f.state.Stream(f.t.Context(), topology.StreamAdmission)
	require.NoError(f.t, err)
	subject := cell.Admission(projectID, int64(jobID), "decided")
	info, err := stream.Info(f.t.Context(), jetstream.WithSubjectFilter(subject))
	require.NoError(f.t, err)
	return int(info.State.Subjects[subject])
}

// tryCallBack accepts a job later. It returns 0 if the service cannot be reached.
func tryCallBack(r received) int {
	request, err := http.NewRequest(http.MethodPost, r.header.Get(callbackURL),
		strings.NewReader(strings.ReplaceAll(accept, "JOB", strconv.Itoa(r.job))))
	if err != nil {
		return 0
	}
	request.Header.Set("Authorization", "Bearer "+r.header.Get(callbackToken))
	request.Header.Set("Content-Type", "application/json")
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	if err != nil {
		return 0
	}
	_ = response.Body.Close()
	return response.StatusCode
}
