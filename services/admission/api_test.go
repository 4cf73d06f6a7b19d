package admission_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"lockstep.internal/libs/access/accesstest"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	admissionv1 "lockstep.internal/schemas/gen/lockstep/admission/v1"
	"lockstep.internal/services/admission/api"
)

func TestEveryMethodHasAScope(t *testing.T) {
	t.Parallel()
	accesstest.RequireScopes(t, "lockstep.admission.v1", api.Scopes())
}

const denyAll = "rules:\n  - {deny: true}\n"

func requireCode(t *testing.T, code fault.Code, err error) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, code, fault.CodeOf(err), "%v", err)
}

// Who manages controllers: maintainers those of their project, owners those of their group, administrators all.
func TestControllersNeedTheRoleOfTheirLevel(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start()
	for _, c := range []struct {
		level admissionv1.ControllerLevel
		id    int64
		codes map[int64]fault.Code
	}{
		{project, projectID, map[int64]fault.Code{
			owner: "", maintainer: "", reader: errcode.PermissionDenied, stranger: errcode.NotFound, administrator: "",
		}},
		{group, innerGroup, map[int64]fault.Code{
			owner: "", maintainer: errcode.NotFound, stranger: errcode.NotFound, administrator: "",
		}},
		{group, outerGroup, map[int64]fault.Code{owner: errcode.NotFound, administrator: ""}},
		{instance, 0, map[int64]fault.Code{
			owner: errcode.PermissionDenied, maintainer: errcode.PermissionDenied, administrator: "",
		}},
		{project, 999, map[int64]fault.Code{administrator: errcode.NotFound}},
	} {
		stored := int64(0)
		if c.id != 999 {
			stored = f.create(c.level, c.id, &admissionv1.ControllerSettings{
				Name: "stored", Policy: denyAll, Mode: admissionv1.ControllerMode_CONTROLLER_MODE_DISABLED,
			}).GetController().GetId()
		}
		for user, code := range c.codes {
			api := f.user(user)
			_, err := api.ListControllers(t.Context(),
				connect.NewRequest(&admissionv1.ListControllersRequest{Level: c.level, OwnerId: c.id}))
			if code == "" {
				require.NoError(t, err)
			} else {
				requireCode(t, code, err)
			}
			if stored == 0 {
				continue
			}
			_, err = api.UpdateController(t.Context(), connect.NewRequest(&admissionv1.UpdateControllerRequest{
				Id: stored, Settings: &admissionv1.ControllerSettings{Match: "true"},
				UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"match"}},
			}))
			if code == "" {
				require.NoError(t, err)
			} else {
				requireCode(t, code, err)
			}
		}
	}
	_, err := f.user(administrator).GetController(t.Context(),
		connect.NewRequest(&admissionv1.GetControllerRequest{Id: 999}))
	requireCode(t, errcode.NotFound, err)
}

func TestBadSettingsChangeNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start()
	api := f.user(maintainer)
	hook := func() *admissionv1.Webhook { return &admissionv1.Webhook{Url: "https://controller.example"} }
	for want, settings := range map[string]*admissionv1.ControllerSettings{
		"name":                {Name: "Not A Name", Policy: denyAll},
		"webhook":             {Name: "neither"},
		"give either":         {Name: "both", Policy: denyAll, Webhook: hook()},
		"policy":              {Name: "broken", Policy: "rules:\n  - {if: 'nothing.known'}\n"},
		"match":               {Name: "broken", Policy: denyAll, Match: "job.name"},
		"timeout":             {Name: "slow", Policy: denyAll, Timeout: durationpb.New(2 * time.Hour)},
		"max_attempts":        {Name: "often", Policy: denyAll, MaxAttempts: 21},
		"webhook.url":         {Name: "ftp", Webhook: &admissionv1.Webhook{Url: "ftp://controller.example"}},
		"has a user name":     {Name: "user", Webhook: &admissionv1.Webhook{Url: "https://a:b@controller.example"}},
		"webhook.ca":          {Name: "ca", Webhook: &admissionv1.Webhook{Url: "https://a.example", Ca: "x"}},
		"webhook.concurrency": {Name: "many", Webhook: &admissionv1.Webhook{Url: "https://a.example", Concurrency: 101}},
		"webhook.request_timeout": {Name: "long", Webhook: &admissionv1.Webhook{
			Url: "https://a.example", RequestTimeout: durationpb.New(time.Hour),
		}},
		"mode": {Name: "mode", Policy: denyAll, Mode: 99},
	} {
		_, err := api.CreateController(t.Context(), connect.NewRequest(&admissionv1.CreateControllerRequest{
			Level: project, OwnerId: projectID, Settings: settings,
		}))
		requireCode(t, errcode.InvalidArgument, err)
		require.ErrorContains(t, err, want)
	}
	_, err := api.CreateController(t.Context(), connect.NewRequest(&admissionv1.CreateControllerRequest{
		Level: project, OwnerId: projectID, Secret: "whsec_c2hvcnQ=",
		Settings: &admissionv1.ControllerSettings{Name: "short", Webhook: hook()},
	}))
	requireCode(t, errcode.InvalidArgument, err)
	listed, err := api.ListControllers(t.Context(),
		connect.NewRequest(&admissionv1.ListControllersRequest{Level: project, OwnerId: projectID}))
	require.NoError(t, err)
	require.Empty(t, listed.Msg.GetControllers())
}

func TestControllersAreOrderedAndHaveUniqueNames(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start()
	var ids []int64
	for _, name := range []string{"one", "two", "three"} {
		created := f.create(project, projectID, &admissionv1.ControllerSettings{Name: name, Policy: denyAll})
		require.Empty(t, created.GetSecret(), "a policy has none")
		ids = append(ids, created.GetController().GetId())
	}
	api := f.user(maintainer)
	_, err := api.CreateController(t.Context(), connect.NewRequest(&admissionv1.CreateControllerRequest{
		Level: project, OwnerId: projectID, Settings: &admissionv1.ControllerSettings{Name: "two", Policy: denyAll},
	}))
	requireCode(t, errcode.AlreadyExists, err)
	reorder := func(order ...int64) (*connect.Response[admissionv1.ReorderControllersResponse], error) {
		return api.ReorderControllers(t.Context(), connect.NewRequest(&admissionv1.ReorderControllersRequest{
			Level: project, OwnerId: projectID, Ids: order,
		}))
	}
	for _, wrong := range [][]int64{nil, ids[:2], {ids[0], ids[0], ids[1]}, append(ids[:3:3], 999)} {
		_, err := reorder(wrong...)
		requireCode(t, errcode.InvalidArgument, err)
	}
	reordered, err := reorder(ids[2], ids[0], ids[1])
	require.NoError(t, err)
	require.Equal(t, "three", reordered.Msg.GetControllers()[0].GetSettings().GetName())
	hook := f.create(project, projectID, &admissionv1.ControllerSettings{
		Name: "hook", Webhook: &admissionv1.Webhook{Url: "https://controller.example"},
	})
	require.True(t, strings.HasPrefix(hook.GetSecret(), "whsec_"))
	_, err = api.UpdateController(t.Context(), connect.NewRequest(&admissionv1.UpdateControllerRequest{
		Id: hook.GetController().GetId(), Settings: &admissionv1.ControllerSettings{Policy: denyAll},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"policy", "webhook"}},
	}))
	requireCode(t, errcode.InvalidArgument, err)
}

func TestDecisionsAreForReadersOfTheProject(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start()
	f.create(project, projectID, &admissionv1.ControllerSettings{
		Name: "odd", Policy: "rules:\n  - {if: job.id % 2 == 1, deny: true, reason: odd}\n",
	})
	for id := 9001; id <= 9004; id++ {
		f.prepare(prepared(id, "docker"))
	}
	for id := 9001; id <= 9004; id++ {
		f.decided(id)
	}
	api := f.user(reader)
	list := func(request *admissionv1.ListDecisionsRequest) *admissionv1.ListDecisionsResponse {
		found, err := api.ListDecisions(t.Context(), connect.NewRequest(request))
		require.NoError(t, err)
		return found.Msg
	}
	denied := list(&admissionv1.ListDecisionsRequest{ProjectId: projectID, Outcome: admissionv1.Outcome_OUTCOME_DENIED})
	require.Len(t, denied.GetDecisions(), 2)
	require.EqualValues(t, 9003, denied.GetDecisions()[0].GetJobId())
	require.Equal(t, []string{"odd: odd"}, denied.GetDecisions()[0].GetReasons())
	first := list(&admissionv1.ListDecisionsRequest{ProjectId: projectID, PageSize: 3})
	require.Len(t, first.GetDecisions(), 3)
	rest := list(&admissionv1.ListDecisionsRequest{ProjectId: projectID, PageSize: 3, PageToken: first.GetNextPageToken()})
	require.Len(t, rest.GetDecisions(), 1)
	explained, err := api.ExplainJob(t.Context(), connect.NewRequest(&admissionv1.ExplainJobRequest{JobId: 9001}))
	require.NoError(t, err)
	require.Equal(t, "rejected", explained.Msg.GetDecision().GetPrerequisites()[0].GetState())
	_, err = f.user(stranger).ExplainJob(t.Context(), connect.NewRequest(&admissionv1.ExplainJobRequest{JobId: 9001}))
	requireCode(t, errcode.NotFound, err)
	_, err = f.user(stranger).ListDecisions(t.Context(),
		connect.NewRequest(&admissionv1.ListDecisionsRequest{ProjectId: projectID}))
	requireCode(t, errcode.NotFound, err)
}

// Each request to a web server is shown: when it was sent, the status of its response and what became of it.
func TestAttemptsAreShown(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start()
	s := newWebServer(t, func(w http.ResponseWriter, r received) {
		if r.number == 1 {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		answering(accept)(w, r)
	})
	settings := s.settings("unsteady")
	begun := time.Now()
	unsteady := f.create(project, projectID, settings)
	gone := newWebServer(t, answering(accept))
	gone.server.Close()
	settings = gone.settings("gone")
	settings.MaxAttempts, settings.FailurePolicy = 1, admissionv1.FailurePolicy_FAILURE_POLICY_IGNORE
	missing := f.create(project, projectID, settings)
	f.prepare(prepared(9001, "docker"))
	require.Equal(t, events.AdmissionOutcomeAdmitted, f.decided(9001).Outcome)
	explained, err := f.user(reader).ExplainJob(t.Context(),
		connect.NewRequest(&admissionv1.ExplainJobRequest{JobId: 9001}))
	require.NoError(t, err)
	attempts := explained.Msg.GetAttempts()
	require.Len(t, attempts, 3)
	for i, want := range []struct {
		controller      int64
		attempt, status int32
		result          string
	}{
		{unsteady.GetController().GetId(), 1, http.StatusInternalServerError, "the controller returned status 500"},
		{unsteady.GetController().GetId(), 2, http.StatusOK, "accepted"},
		{missing.GetController().GetId(), 1, 0, "connection refused"},
	} {
		got := attempts[i]
		require.Equal(t, want.controller, got.GetControllerId())
		require.Equal(t, want.attempt, got.GetAttempt())
		require.Equal(t, want.status, got.GetStatus())
		require.Contains(t, got.GetResult(), want.result)
		require.False(t, got.GetSentAt().AsTime().Before(begun.Truncate(time.Microsecond)))
		require.False(t, got.GetEndedAt().AsTime().Before(got.GetSentAt().AsTime()))
	}
}
