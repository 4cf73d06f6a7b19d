package admission_test

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"lockstep.internal/schemas/gen/events"
	admissionv1 "lockstep.internal/schemas/gen/lockstep/admission/v1"
)

// Each wrong answer is a recorded, readable error and the failure policy, never an acceptance.
func TestLyingAnswersNeverAdmit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start()
	answers := map[string]func(w http.ResponseWriter, r received){
		"the request was about job": answering(`[{"id": 1, "admission": "accepted"}]`),
		"the answer is not valid":   answering(`{`),
		"more than 1048576 bytes": func(w http.ResponseWriter, r received) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, strings.Repeat(" ", 2<<20))
		},
		"redirects are not followed": func(w http.ResponseWriter, _ received) {
			w.Header().Set("Location", "http://127.0.0.1:1/")
			w.WriteHeader(http.StatusTemporaryRedirect)
		},
		"content type must be": func(w http.ResponseWriter, r received) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, strings.ReplaceAll(accept, "JOB", strconv.Itoa(r.job)))
		},
		"it must have one job": answering(`[{"id": JOB, "admission": "accepted"}, {"id": JOB, "admission": "accepted"}]`),
		"both accepted":        answering(`[{"id": JOB, "admission": "accepted", "runners": {"accepted_ids": ["31"], "rejected_ids": ["31"]}}]`),
		"tag": answering(`[{"id": JOB, "admission": "accepted",
			"tags": {"add": ["` + strings.Repeat("x", 10_000) + `"]}}]`),
		"status 500":      func(w http.ResponseWriter, _ received) { w.WriteHeader(http.StatusInternalServerError) },
		"did not respond": func(_ http.ResponseWriter, r received) { <-r.gone },
	}
	job := 9001
	jobs := map[int]string{}
	for want, answer := range answers {
		s := newWebServer(t, answer)
		settings := s.settings("liar-" + strconv.Itoa(job))
		settings.MaxAttempts, settings.Match = 2, `job.id == `+strconv.Itoa(job)
		settings.Webhook.RequestTimeout = durationpb.New(time.Second)
		f.create(project, projectID, settings)
		f.prepare(prepared(job, "docker"))
		jobs[job] = want
		job++
	}
	for id, want := range jobs {
		d := f.decided(id)
		require.Equal(t, events.AdmissionOutcomeTimeout, d.Outcome, want)
		require.Contains(t, d.Reasons[0].Text, want)
		var failed events.AdmissionPrerequisite
		for _, p := range d.Prerequisites {
			if p.State != events.AdmissionStateSkipped {
				failed = p
			}
		}
		require.Equal(t, events.AdmissionStateFailed, failed.State, want)
		require.Equal(t, 2, failed.Attempt, want)
	}
}

func TestPrivateAddressesAreRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.cfg.Controllers.AllowPrivate = false
	f.start()
	s := newWebServer(t, answering(accept))
	settings := s.settings("inside")
	settings.MaxAttempts = 1
	f.create(project, projectID, settings)
	f.prepare(prepared(9001, "docker"))
	d := f.decided(9001)
	require.Equal(t, events.AdmissionOutcomeTimeout, d.Outcome)
	require.Contains(t, d.Reasons[0].Text, "the address is not public")
	require.Empty(t, s.received())
}

// Only the jobs of a silent controller wait. They are denied at its time-out; the breaker opens and closes.
func TestSilentControllerDelaysItsOwnJobsOnly(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start()
	release := make(chan struct{})
	silent := newWebServer(t, func(w http.ResponseWriter, r received) {
		select {
		case <-release:
			answering(accept)(w, r)
		case <-r.gone:
		}
	})
	settings := silent.settings("silent")
	settings.Match, settings.Timeout = `job.id < 9100`, durationpb.New(4*time.Second)
	settings.Webhook.RequestTimeout = durationpb.New(time.Second)
	f.create(project, projectID, settings)
	works := newWebServer(t, answering(accept))
	f.create(instance, 0, works.settings("works"))
	for id := 9001; id < 9051; id++ {
		f.prepare(prepared(id, "docker"))
	}
	for id := 9101; id < 9111; id++ {
		f.prepare(prepared(id, "docker"))
	}
	for id := 9101; id < 9111; id++ {
		require.Equal(t, events.AdmissionOutcomeAdmitted, f.decided(id).Outcome)
	}
	var none events.AdmissionDecided
	require.False(t, f.decision(9050, &none), "the others have waited for the silent controller")
	for id := 9001; id < 9051; id++ {
		d := f.decided(id)
		require.Equal(t, events.AdmissionOutcomeTimeout, d.Outcome)
		require.Contains(t, d.Reasons[0].Text, "did not answer in time")
	}
	require.Less(t, len(silent.received()), 50, "the breaker has not opened")
	close(release)
	f.prepare(prepared(9060, "docker"))
	// The breaker may still be open for the first ones.
	id := 9060
	require.Eventually(t, func() bool {
		if d := f.decided(id); d.Outcome == events.AdmissionOutcomeAdmitted {
			return true
		}
		id++
		f.prepare(prepared(id, "docker"))
		return false
	}, 3*soon, 10*time.Millisecond, "the breaker does not close")
}

// Jobs that wait ask the current controllers.
func TestControllerChangesWhileJobsWait(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start()
	waiting := newWebServer(t, func(w http.ResponseWriter, _ received) { w.WriteHeader(http.StatusAccepted) })
	ids := map[string]int64{}
	for i, name := range []string{"changed", "disabled", "deleted"} {
		settings := waiting.settings(name)
		settings.Match = `job.id == ` + strconv.Itoa(9001+i)
		ids[name] = f.create(project, projectID, settings).GetController().GetId()
		f.prepare(prepared(9001+i, "docker"))
	}
	require.Eventually(t, func() bool { return len(waiting.received()) == 3 }, soon, 10*time.Millisecond)
	late := map[int]received{}
	for _, r := range waiting.received() {
		late[r.job] = r
	}
	denies := newWebServer(t, answering(`[{"id": JOB, "admission": "denied", "reason": "new rules"}]`))
	update := func(name, path string, settings *admissionv1.ControllerSettings) {
		_, err := f.user(maintainer).UpdateController(t.Context(), connect.NewRequest(&admissionv1.UpdateControllerRequest{
			Id: ids[name], Settings: settings, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{path}},
		}))
		require.NoError(t, err)
	}
	update("changed", "webhook", &admissionv1.ControllerSettings{Webhook: &admissionv1.Webhook{Url: denies.server.URL}})
	update("disabled", "mode", &admissionv1.ControllerSettings{Mode: admissionv1.ControllerMode_CONTROLLER_MODE_DISABLED})
	_, err := f.user(maintainer).DeleteController(t.Context(),
		connect.NewRequest(&admissionv1.DeleteControllerRequest{Id: ids["deleted"]}))
	require.NoError(t, err)
	changed := f.decided(9001)
	require.Equal(t, events.AdmissionOutcomeDenied, changed.Outcome)
	require.Equal(t, "new rules", changed.Reasons[0].Text)
	require.Equal(t, events.AdmissionOutcomeAdmitted, f.decided(9002).Outcome)
	require.Equal(t, events.AdmissionOutcomeAdmitted, f.decided(9003).Outcome)
	for job, r := range late {
		require.Equal(t, http.StatusGone, callBack(t, r, r.header.Get(callbackToken), accept), "job %d", job)
	}
}

// A request that failed is repeated; the second answer counts.
func TestFailedRequestIsRepeated(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start()
	s := newWebServer(t, func(w http.ResponseWriter, r received) {
		if r.number == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		answering(accept)(w, r)
	})
	f.create(project, projectID, s.settings("recovers"))
	f.prepare(prepared(9001, "docker"))
	d := f.decided(9001)
	require.Equal(t, events.AdmissionOutcomeAdmitted, d.Outcome)
	require.Equal(t, 2, d.Prerequisites[0].Attempt)
	require.NotEqual(t, s.received()[0].header.Get("Webhook-Id"), s.received()[1].header.Get("Webhook-Id"))
}

func TestDryRunRecordsAndIgnoreContinues(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start()
	denies := newWebServer(t, answering(`[{"id": JOB, "admission": "rejected", "reason": "no"}]`))
	dry := denies.settings("dry")
	dry.Mode = admissionv1.ControllerMode_CONTROLLER_MODE_DRY_RUN
	f.create(project, projectID, dry)
	broken := newWebServer(t, func(w http.ResponseWriter, _ received) { w.WriteHeader(http.StatusBadRequest) })
	ignored := broken.settings("ignored")
	ignored.FailurePolicy = admissionv1.FailurePolicy_FAILURE_POLICY_IGNORE
	f.create(project, projectID, ignored)
	f.prepare(prepared(9001, "docker"))
	d := f.decided(9001)
	require.Equal(t, events.AdmissionOutcomeAdmitted, d.Outcome)
	require.True(t, d.Prerequisites[0].DryRun)
	require.Equal(t, events.AdmissionStateRejected, d.Prerequisites[0].State)
	require.Equal(t, events.AdmissionStateIgnored, d.Prerequisites[1].State)
	require.Len(t, broken.received(), 1, "status 400 is final")
}

// The deadline of the whole admission bounds the time-outs of controllers.
func TestDeadlineEndsAdmission(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start()
	s := newWebServer(t, func(w http.ResponseWriter, _ received) { w.WriteHeader(http.StatusAccepted) })
	f.create(project, projectID, s.settings("later"))
	p := prepared(9001, "docker")
	p.Deadline = time.Now().Add(2 * time.Second)
	f.prepare(p)
	d := f.decided(9001)
	require.Equal(t, events.AdmissionOutcomeTimeout, d.Outcome)
	require.Contains(t, d.Reasons[0].Text, "time for admission has passed")
	require.Equal(t, http.StatusGone, callBack(t, s.received()[0], s.received()[0].header.Get(callbackToken), accept))
}

// Callbacks arrive when the time of the controller ends, at two replicas. Of the answer and the time-out exactly one
// counts, and the response to the controller is the same.
func TestCallbackRacesTheTimeout(t *testing.T) {
	t.Parallel()
	const jobs, timeout, before, apart = 40, 8 * time.Second, 6 * time.Second, 165 * time.Millisecond
	f := newFixture(t)
	f.start()
	f.start()
	var group sync.WaitGroup
	statuses := make([]int, jobs)
	waiting := newWebServer(t, func(w http.ResponseWriter, r received) {
		w.WriteHeader(http.StatusAccepted)
		id := r.job - 9001
		group.Add(1)
		time.AfterFunc(timeout-before+time.Duration(id)*apart, func() {
			defer group.Done()
			statuses[id] = tryCallBack(r)
		})
	})
	settings := waiting.settings("races")
	settings.Timeout, settings.Webhook.Concurrency = durationpb.New(timeout), jobs
	f.create(project, projectID, settings)
	for id := range jobs {
		f.prepare(prepared(9001+id, "docker"))
	}
	for id := range jobs {
		f.decided(9001 + id)
	}
	group.Wait()
	counts := map[events.AdmissionOutcome]int{}
	for id, status := range statuses {
		d := f.decided(9001 + id)
		require.Equal(t, 1, f.decisions(9001+id))
		counts[d.Outcome]++
		switch status {
		case http.StatusNoContent:
			require.Equal(t, events.AdmissionOutcomeAdmitted, d.Outcome)
		case http.StatusGone, 0: // 0: the time has passed before it was asked
			require.Equal(t, events.AdmissionOutcomeTimeout, d.Outcome)
		default:
			require.Fail(t, "unexpected status", "job %d: %d", 9001+id, status)
		}
	}
	require.Len(t, counts, 2, "some callbacks are in time, others are not: %v", counts)
}
