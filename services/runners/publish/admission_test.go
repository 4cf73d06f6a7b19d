package publish_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/publish"
	"lockstep.internal/services/runners/runner"
)

func TestPreparationHasWhatAdmissionNeedsToKnow(t *testing.T) {
	t.Parallel()
	j := job.Job{
		ID: 7, PipelineID: 3, ProjectID: 4, OrganizationID: 1, Name: "a", Attempt: 1, State: job.Created, Revision: 1,
		Timeout: time.Hour, CreatedAt: now, Tags: []string{"linux"},
	}
	c, err := j.Prepare(job.Preparation{
		UserID: 5, Ref: "main", Source: "api", Deadline: now.Add(time.Hour), Variables: map[string]string{"CI": "true"},
	}, now)
	require.NoError(t, err)
	messages, err := publish.Encoder{Cell: "local"}.Changes(t.Context(), c)
	require.NoError(t, err)
	decoded, err := event.Decode(messages[0].Header, messages[0].Data)
	require.NoError(t, err)
	got, err := events.Decode[events.JobPreparing](decoded.Data())
	require.NoError(t, err)
	require.Equal(t, 2, got.Preparation)
	require.Equal(t, got.Preparation, got.Job.Revision)
	require.Equal(t, []string{"linux"}, got.Job.Tags)
	require.Equal(t, 5, got.UserID)
	require.Equal(t, "main", got.Ref)
	require.Equal(t, "api", got.Source)
	require.Equal(t, now.Add(time.Hour), got.Deadline)
	require.Equal(t, map[string]string{"CI": "true"}, got.Variables)

	c.Preparation = nil
	_, err = publish.Encoder{Cell: "local"}.Changes(t.Context(), c)
	require.EqualError(t, err, "job 7 begins to wait for admission without a preparation")
}

func TestRunnerIsAValidEvent(t *testing.T) {
	t.Parallel()
	encoder := publish.Encoder{Cell: "local"}
	r := runner.Runner{
		ID: 31, Revision: 4, Type: runner.ProjectType, OrganizationID: 1, ProjectIDs: []int64{4}, Settings: runner.Settings{
			Description: "large", Tags: []string{"linux"}, RunUntagged: true, Protected: true, Paused: true, Locked: true,
			UserIDs: []int64{5}, GroupIDs: []int64{3}, MaintenanceNote: "not published",
		},
	}
	want := events.RunnerChanged{
		RunnerID: 31, Revision: 4, Type: events.RunnerTypeProjectType, OrganizationID: 1, ProjectIds: []int{4},
		Description: "large", Tags: []string{"linux"}, RunUntagged: true, Protected: true, Paused: true, Locked: true,
		UserIds: []int{5}, GroupIds: []int{3},
	}
	m, err := encoder.Runner(t.Context(), r, now)
	require.NoError(t, err)
	require.Equal(t, "lockstep.local.runner.31", m.Subject)
	require.Equal(t, want, runnerOf(t, m))
	require.Empty(t, m.Header.Get(jetstream.MsgTTLHeader))
	m, err = encoder.RunnerDeleted(t.Context(), r, now)
	require.NoError(t, err)
	want.Revision, want.Deleted = 5, true
	require.Equal(t, want, runnerOf(t, m))
	require.Equal(t, "24h0m0s", m.Header.Get(jetstream.MsgTTLHeader), "the stream forgets it")
}

func runnerOf(t *testing.T, m *nats.Msg) events.RunnerChanged {
	t.Helper()
	decoded, err := event.Decode(m.Header, m.Data)
	require.NoError(t, err)
	require.Equal(t, events.TypeRunnerChanged, decoded.Type())
	got, err := events.Decode[events.RunnerChanged](decoded.Data())
	require.NoError(t, err)
	return *got
}

// decided returns a decision as the admission service publishes it.
func decided(t *testing.T, change func(*events.AdmissionDecided)) *nats.Msg {
	t.Helper()
	d := events.AdmissionDecided{
		JobID: 9001, Preparation: 2, PipelineID: 801, ProjectID: 4, OrganizationID: 1, DurationMs: 41,
		Outcome: events.AdmissionOutcomeAdmitted, Tags: []string{"zone_a", "linux", "linux"},
		AcceptedRunnerIds: []int{31}, RejectedRunnerIds: []int{32},
		Reasons: []events.AdmissionReason{{Controller: "zones", ControllerID: 12, Text: "in zone_a"}, {Text: "done"}},
		Prerequisites: []events.AdmissionPrerequisite{{
			ControllerID: 12, Name: "zones", Level: "group", Position: 1, State: "accepted", AddedTags: []string{"zone_a"},
		}},
	}
	change(&d)
	return encoded(t, events.TypeAdmissionDecided, "lockstep.local.admission.4.9001.decided", d)
}

func encoded(t *testing.T, eventType, subject string, data any) *nats.Msg {
	t.Helper()
	e, err := event.New(event.Attributes{
		Type: eventType, Source: event.ServiceSource("local", "admission"), Subject: "9001", ID: "9001/2", Time: now,
	}, data)
	require.NoError(t, err)
	m, err := event.Encode(e, subject)
	require.NoError(t, err)
	return m
}

func TestDecisionOfAdmissionIsRead(t *testing.T) {
	t.Parallel()
	m := decided(t, func(*events.AdmissionDecided) {})
	got, err := publish.DecodeAdmission("local", m.Subject, m.Header, m.Data)
	require.NoError(t, err)
	require.Equal(t, publish.Admission{
		JobID: 9001, Preparation: 2,
		Prerequisites: []job.Prerequisite{{
			ControllerID: 12, Name: "zones", Level: "group", Position: 1, State: "accepted", AddedTags: []string{"zone_a"},
		}},
		Decision: &job.Decision{
			Preparation: 2, Outcome: job.Admitted, Tags: []string{"linux", "zone_a"}, AcceptedRunners: []int64{31},
			RejectedRunners: []int64{32}, Reason: "zones: in zone_a; admission: done",
		},
	}, got)
	m = decided(t, func(d *events.AdmissionDecided) {
		d.Reasons = []events.AdmissionReason{{Text: strings.Repeat("é", 3000)}}
	})
	got, err = publish.DecodeAdmission("local", m.Subject, m.Header, m.Data)
	require.NoError(t, err)
	require.Len(t, []rune(got.Decision.Reason), 2000)
}

func TestEventOfAdmissionThatIsNotValidIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		m    *nats.Msg
		want string
	}{
		"another job": {
			decided(t, func(d *events.AdmissionDecided) { d.JobID = 9002 }), "an event about job 9002 is not allowed on subject",
		},
		"another project": {
			decided(t, func(d *events.AdmissionDecided) { d.ProjectID = 5 }), "is not allowed on subject",
		},
		"unknown outcome": {
			decided(t, func(d *events.AdmissionDecided) { d.Outcome = "perhaps" }), "outcome",
		},
		"no preparation": {decided(t, func(d *events.AdmissionDecided) { d.Preparation = 0 }), "preparation"},
		"event of another kind": {
			encoded(t, events.TypeDirectoryUser, "lockstep.local.admission.4.9001.decided",
				events.DirectoryUser{UserID: 5, State: "active"}),
			"is not about admission",
		},
	} {
		_, err := publish.DecodeAdmission("local", c.m.Subject, c.m.Header, c.m.Data)
		require.ErrorContains(t, err, c.want, name)
	}
}
