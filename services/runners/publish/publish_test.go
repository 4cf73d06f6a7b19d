package publish_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/publish"
)

var now = time.Date(2026, 3, 2, 10, 40, 12, 417_000_000, time.UTC)

func TestEveryTransitionIsAValidEventFromWhichTheJobIsRead(t *testing.T) {
	t.Parallel()
	whole := job.Job{
		ID: 9001, PipelineID: 801, ProjectID: 4, OrganizationID: 1, Name: "test: [go, linux]", Stage: "test",
		Tags: []string{"linux"}, Protected: true, Timeout: time.Hour, State: job.Failed, Revision: 6, Attempt: 2,
		RetryOf: 8990, RetriedBy: 9044, Claims: 1, RunnerID: 31, ManagerID: 77, RunTimeout: 30 * time.Minute,
		Reason: job.ScriptFailure, ExitCode: 1, CanceledBy: 5,
		Policy: job.Policy{
			Retries: 2, RetryWhen: []job.FailureReason{job.ScriptFailure}, AllowFailure: true, AllowExitCodes: []int{137},
			AllowDeniedAdmission: true,
		},
		Admission: &job.Admission{
			Preparation: 2, OriginalTags: []string{"go"}, AcceptedRunners: []int64{31}, RejectedRunners: []int64{32},
			Reason: "zones: user 5 is in zone_a",
		},
		CreatedAt: now, PreparingSince: now.Add(time.Millisecond), PendingSince: now.Add(time.Second),
		StartedAt:  now.Add(2 * time.Second),
		FinishedAt: now.Add(time.Minute),
	}
	smallest := job.Job{
		ID: 1, PipelineID: 1, ProjectID: 1, OrganizationID: 1, Name: "a", State: job.Created, Revision: 1, Attempt: 1,
		Timeout: time.Second, CreatedAt: now,
	}
	encoder := publish.Encoder{Cell: "local"}
	for _, j := range []job.Job{whole, smallest} {
		for _, name := range []job.Event{
			job.EventCreated, job.EventPreparing, job.EventPending, job.EventRunning, job.EventReleased, job.EventCanceling,
			job.EventCanceled, job.EventFinished, job.EventSkipped, job.EventRetried, job.EventAdmitted, job.EventRejected,
			job.EventMoved, job.EventArrived,
		} {
			messages, err := encoder.Changes(t.Context(), job.Change{
				Job: j, Event: name, At: now, Preparation: &job.Preparation{Deadline: now},
			})
			require.NoError(t, err)
			require.Len(t, messages, 1)
			require.Equal(t, encoder.Cell.Job(j.ProjectID, j.ID, string(name)), messages[0].Subject)
			decoded, err := event.Decode(messages[0].Header, messages[0].Data)
			require.NoError(t, err)
			require.Equal(t, now, decoded.Time())
			require.Equal(t, name, publish.EventOf(decoded.Type()))
			_, err = events.DecodeAny(decoded.Type(), decoded.Data())
			require.NoError(t, err, "%s", name)
			read, err := publish.DecodeJob(decoded.Data())
			require.NoError(t, err)
			require.Equal(t, j, read)
		}
	}
}

func TestTheEventOfATransitionHasAnIdOfItsOwn(t *testing.T) {
	t.Parallel()
	created := job.Create(job.Job{ID: 7, ProjectID: 4, Timeout: time.Hour}, now)
	pending, err := created.Job.Enqueue(now)
	require.NoError(t, err)
	messages, err := publish.Encoder{Cell: "local"}.Changes(t.Context(), created, pending)
	require.NoError(t, err)
	require.Equal(t, "7/1/created", messages[0].Header["ce-id"][0])
	require.Equal(t, "7/2/pending", messages[1].Header["ce-id"][0])
}
