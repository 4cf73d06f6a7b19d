package admission_test

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsauth/natsadmin"
	"lockstep.internal/schemas/gen/events"
	admissionv1 "lockstep.internal/schemas/gen/lockstep/admission/v1"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/tools/stack"
)

// TestCallbackThatRacesTheTimeoutHasOneOutcome lets a controller answer at times around its time-out. The response to
// the controller, the decision on the stream, and the job that runners see are the same, and do not change any more.
func TestCallbackThatRacesTheTimeoutHasOneOutcome(t *testing.T) {
	t.Parallel()
	const jobs, timeout, before, apart = 40, 10 * time.Second, 8 * time.Second, 220 * time.Millisecond
	c := startWith(t, stack.Options{NATSPrincipals: []natsauth.StaticPrincipal{natsadmin.Principal()}})
	_, err := c.AddReplica(t.Context(), stack.Admission)
	require.NoError(t, err)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	httpClient := &http.Client{Transport: transport}
	var answers sync.WaitGroup
	var mu sync.Mutex
	statuses := map[int64]int{}
	races := newController(t, "races", make(chan struct{}, 1<<16), func(w http.ResponseWriter, q question) {
		w.WriteHeader(http.StatusAccepted)
		mu.Lock()
		number := len(statuses)
		statuses[q.job] = 0
		mu.Unlock()
		answers.Add(1)
		time.AfterFunc(timeout-before+time.Duration(number)*apart, func() {
			defer answers.Done()
			status := q.callBack(t.Context(), httpClient)
			mu.Lock()
			defer mu.Unlock()
			statuses[q.job] = status
		})
	})
	settings := races.settings()
	settings.Timeout, settings.MaxAttempts = durationpb.New(timeout), 1
	c.runner("for all", "races")
	c.create(at(admissionv1.ControllerLevel_CONTROLLER_LEVEL_INSTANCE, 0, settings))
	made := c.decidedJobs(c.parallelPipeline(t.Context(), jobs).GetId())
	answers.Wait()
	require.Len(t, made, jobs)

	decisions, history := c.decisions(), c.history()
	outcomes := map[events.AdmissionOutcome]int{}
	for _, before := range made {
		id := before.GetId()
		now := c.await(id, before.GetState())
		require.Len(t, decisions[id], 1, "job %d is decided once", id)
		outcome := decisions[id][0].Outcome
		outcomes[outcome]++
		if statuses[id] == http.StatusNoContent {
			require.Equal(t, events.AdmissionOutcomeAdmitted, outcome, "job %d: as the response to the controller", id)
		} else {
			require.Equal(t, http.StatusGone, statuses[id], "job %d", id)
			require.Equal(t, events.AdmissionOutcomeTimeout, outcome, "job %d: as the response to the controller", id)
		}
		if outcome == events.AdmissionOutcomeAdmitted {
			require.Equal(t, runnersv1.JobState_JOB_STATE_PENDING, now.GetState())
			require.Equal(t, []string{"created", "preparing", "admitted", "pending"}, history[id])
		} else {
			require.Equal(t, runnersv1.JobState_JOB_STATE_FAILED, now.GetState())
			require.Equal(t, []string{"created", "preparing", "rejected"}, history[id])
		}
	}
	require.Len(t, outcomes, 2, "some answers are in time, others are not: %v", outcomes)
}
