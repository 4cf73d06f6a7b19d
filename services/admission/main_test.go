package admission_test

import (
	"net/http"
	"testing"
	"time"

	"connectrpc.com/connect"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	admissionv1 "lockstep.internal/schemas/gen/lockstep/admission/v1"
)

func TestJobWithoutControllerIsAdmittedAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start()
	f.prepare(prepared(9001, "docker"))
	d := f.decided(9001)
	require.Equal(t, events.AdmissionOutcomeAdmitted, d.Outcome)
	require.Equal(t, []string{"docker"}, d.Tags)
	require.Empty(t, d.Prerequisites)
}

// The chain is project, groups upward, instance. Each sees the job as those before have changed it.
func TestChainOfProjectTwoGroupsAndInstance(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start()
	var seen [4]*webServer
	for i, place := range []struct {
		level admissionv1.ControllerLevel
		owner int64
		name  string
	}{
		{instance, 0, "instance"},
		{group, outerGroup, "outer"},
		{group, innerGroup, "inner"},
		{project, projectID, "project"},
	} {
		s := newWebServer(t, answering(
			`[{"id": JOB, "admission": "accepted", "tags": {"add": ["`+place.name+`"]}, "reason": "from `+place.name+`"}]`))
		f.create(place.level, place.owner, s.settings(place.name))
		seen[3-i] = s
	}
	f.runner(events.RunnerChanged{
		RunnerID: 33, Revision: 1, Type: events.RunnerTypeGroupType, GroupID: outerGroup, OrganizationID: organizationID,
		Tags: []string{"docker", "instance", "outer", "inner", "project"},
	})
	f.prepare(prepared(9001, "docker"))
	d := f.decided(9001)
	require.Equal(t, events.AdmissionOutcomeAdmitted, d.Outcome, "%+v", d)
	require.Equal(t, []string{"docker", "inner", "instance", "outer", "project"}, d.Tags)
	require.Equal(t, []string{"inner", "instance", "outer", "project"}, d.AddedTags)
	require.Len(t, d.Prerequisites, 4)
	for i, name := range []string{"project", "inner", "outer", "instance"} {
		require.Equal(t, name, d.Prerequisites[i].Name)
		require.Equal(t, events.AdmissionStateAccepted, d.Prerequisites[i].State)
		require.Equal(t, "from "+name, d.Reasons[i].Text)
		require.Len(t, seen[i].received(), 1)
	}
	require.Equal(t, []string{"docker"}, seen[0].received()[0].tags)
	require.Equal(t, []string{"docker", "inner", "outer", "project"}, seen[3].received()[0].tags)
}

func TestRequestIsSignedAndHasThePublicPayload(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start()
	s := newWebServer(t, answering(accept))
	settings := s.settings("signed")
	settings.Variables = []string{"CI_PROJECT_ID", "GITLAB_USER_LOGIN"}
	created := f.create(project, projectID, settings)
	f.prepare(prepared(9001, "docker"))
	require.Equal(t, events.AdmissionOutcomeAdmitted, f.decided(9001).Outcome)
	got := s.received()[0]
	require.JSONEq(t, `[{"id": 9001, "variables": {"CI_PROJECT_ID": 4, "GITLAB_USER_LOGIN": "ada"}, "tags": ["docker"]}]`,
		got.body)
	verifier, err := standardwebhooks.NewWebhook(created.GetSecret())
	require.NoError(t, err)
	require.NoError(t, verifier.Verify([]byte(got.body), got.header))
}

// For a while after a rotation, requests have a signature of both secrets; after it, of the new one only.
func TestRotatedSecretSignsBesideTheOneBefore(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start()
	s := newWebServer(t, answering(accept))
	created := f.create(project, projectID, s.settings("signed"))
	id := created.GetController().GetId()
	rotate := func(user int64, overlap time.Duration) (*admissionv1.RotateSecretResponse, error) {
		rotated, err := f.user(user).RotateSecret(t.Context(), connect.NewRequest(&admissionv1.RotateSecretRequest{
			Id: id, Overlap: durationpb.New(overlap),
		}))
		if err != nil {
			return nil, err
		}
		return rotated.Msg, nil
	}
	requireSigned := func(job int, secret string, signed bool) {
		t.Helper()
		requests := s.received()
		got := requests[len(requests)-1]
		require.Equal(t, job, got.job)
		verifier, err := standardwebhooks.NewWebhook(secret)
		require.NoError(t, err)
		err = verifier.Verify([]byte(got.body), got.header)
		require.Equal(t, signed, err == nil, "%v", err)
	}
	for _, user := range []int64{reader, stranger} {
		_, err := rotate(user, time.Hour)
		require.Error(t, err)
	}
	for _, overlap := range []time.Duration{-time.Second, 8 * 24 * time.Hour} {
		_, err := rotate(maintainer, overlap)
		require.Equal(t, errcode.InvalidArgument, fault.CodeOf(err))
	}
	second, err := rotate(maintainer, time.Hour)
	require.NoError(t, err)
	require.NotNil(t, second.GetController().GetPreviousSecretUntil())
	f.prepare(prepared(9001, "docker"))
	require.Equal(t, events.AdmissionOutcomeAdmitted, f.decided(9001).Outcome)
	requireSigned(9001, created.GetSecret(), true)
	requireSigned(9001, second.GetSecret(), true)

	third, err := rotate(maintainer, 0)
	require.NoError(t, err)
	require.Nil(t, third.GetController().GetPreviousSecretUntil())
	f.prepare(prepared(9002, "docker"))
	require.Equal(t, events.AdmissionOutcomeAdmitted, f.decided(9002).Outcome)
	requireSigned(9002, created.GetSecret(), false)
	requireSigned(9002, second.GetSecret(), false)
	requireSigned(9002, third.GetSecret(), true)

	id = f.create(project, projectID, &admissionv1.ControllerSettings{
		Name: "policy", Policy: "rules:\n  - {allow: true}\n",
	}).GetController().GetId()
	_, err = rotate(maintainer, time.Hour)
	require.Equal(t, errcode.FailedPrecondition, fault.CodeOf(err))
}

// Two replicas share the work, and ask about each job once.
func TestTwoReplicasAskOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start()
	f.start()
	s := newWebServer(t, answering(accept))
	f.create(instance, 0, s.settings("first"))
	f.create(instance, 0, &admissionv1.ControllerSettings{
		Name: "second", Policy: "rules:\n  - {if: 'user.login == \"eve\"', deny: true}\n",
	})
	const jobs = 100
	for id := range jobs {
		f.prepare(prepared(9001+id, "docker"))
	}
	for id := range jobs {
		require.Equal(t, events.AdmissionOutcomeAdmitted, f.decided(9001+id).Outcome)
	}
	require.Len(t, s.received(), jobs)
}

func TestCanceledJobIsNotAskedAnyMore(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start()
	s := newWebServer(t, func(w http.ResponseWriter, _ received) { w.WriteHeader(http.StatusAccepted) })
	f.create(project, projectID, s.settings("later"))
	p := prepared(9001, "docker")
	f.prepare(p)
	require.Eventually(t, func() bool { return len(s.received()) == 1 }, soon, 10*time.Millisecond)
	p.Job.State, p.Job.Revision = events.JobStateCanceled, 3
	f.publish(f.runners, cell.Job(projectID, 9001, "canceled"), events.TypeJobCanceled, "runners",
		events.JobCanceled{Job: p.Job})
	require.Eventually(t, func() bool {
		explained, err := f.user(reader).ExplainJob(t.Context(),
			connect.NewRequest(&admissionv1.ExplainJobRequest{JobId: 9001}))
		return err == nil && explained.Msg.GetDecision().GetOutcome() == admissionv1.Outcome_OUTCOME_CANCELED
	}, soon, 10*time.Millisecond)
	var none events.AdmissionDecided
	require.False(t, f.decision(9001, &none))
}
