package cli

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	admissionv1 "lockstep.internal/schemas/gen/lockstep/admission/v1"
	"lockstep.internal/schemas/gen/lockstep/admission/v1/admissionv1connect"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
)

func (f *fakeRunners) ReportMove(
	_ context.Context, r *connect.Request[runnersv1.ReportMoveRequest],
) (*connect.Response[runnersv1.ReportMoveResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = r.Msg
	return connect.NewResponse(&runnersv1.ReportMoveResponse{
		Unserved: 1, UnservedJobs: []*runnersv1.UnservedJob{{Id: 71, Name: "compile", Tags: []string{"gpu", "linux"}}},
		RunnerIdsStaying: []int64{12, 13}, RunningJobs: 2, WaitingJobs: 3, Pipelines: 4, Runners: 5, Artifacts: 6,
		ArtifactBytes: 7_500_000, Agents: 2, Workspaces: 1,
	}), nil
}

func (f *fakeRunners) CancelMove(
	_ context.Context, r *connect.Request[runnersv1.CancelMoveRequest],
) (*connect.Response[runnersv1.CancelMoveResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = r.Msg
	return connect.NewResponse(&runnersv1.CancelMoveResponse{}), nil
}

func (f *fakeRunners) GetMove(
	context.Context, *connect.Request[runnersv1.GetMoveRequest],
) (*connect.Response[runnersv1.GetMoveResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := f.phases[0]
	if len(f.phases) > 1 {
		f.phases = f.phases[1:]
	}
	return connect.NewResponse(&runnersv1.GetMoveResponse{Move: next}), nil
}

func (f *fakeRunners) ListMoves(
	context.Context, *connect.Request[runnersv1.ListMovesRequest],
) (*connect.Response[runnersv1.ListMovesResponse], error) {
	return connect.NewResponse(&runnersv1.ListMovesResponse{Moves: []*runnersv1.Move{
		{OrganizationId: 7, Cell: "eu-2", Phase: runnersv1.MovePhase_MOVE_PHASE_MOVED, Message: "cell eu-2 is away"},
		{OrganizationId: 8, Cell: "eu-3", Arrival: true, Phase: runnersv1.MovePhase_MOVE_PHASE_OPEN},
	}}), nil
}

// fakeControllers has one controller of organization 7.
type fakeControllers struct {
	admissionv1connect.UnimplementedControllerServiceHandler
}

func (fakeControllers) ListOrganizationControllers(
	_ context.Context, r *connect.Request[admissionv1.ListOrganizationControllersRequest],
) (*connect.Response[admissionv1.ListOrganizationControllersResponse], error) {
	response := &admissionv1.ListOrganizationControllersResponse{}
	if r.Msg.GetOrganizationId() == 7 {
		response.Total = 1
		response.Controllers = []*admissionv1.Controller{{
			Id: 12, Level: admissionv1.ControllerLevel_CONTROLLER_LEVEL_GROUP, OwnerId: 2,
			Settings: &admissionv1.ControllerSettings{Name: "zones"},
		}}
	}
	return connect.NewResponse(response), nil
}

func (fakeControllers) RotateSecret(
	_ context.Context, r *connect.Request[admissionv1.RotateSecretRequest],
) (*connect.Response[admissionv1.RotateSecretResponse], error) {
	response := &admissionv1.RotateSecretResponse{
		Controller: &admissionv1.Controller{Id: r.Msg.GetId()}, Secret: "whsec_new",
	}
	if r.Msg.GetOverlap() == nil || r.Msg.GetOverlap().AsDuration() > 0 {
		response.Controller.PreviousSecretUntil = timestamppb.New(time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC))
	}
	return connect.NewResponse(response), nil
}

func TestRotatedSecretIsPrinted(t *testing.T) {
	t.Parallel()
	f := newFakeRunners(t)
	rotate := []string{"admission", "controllers", "rotate-secret", "12", "--admission-server", f.flags[3]}
	stdout, stderr := f.runs(rotate...)
	require.Equal(t, "whsec_new\n", stdout)
	require.Contains(t, stderr, "signed with the secret before, too, until")
	stdout, stderr = f.runs(append(rotate, "--overlap", "0s")...)
	require.Equal(t, "whsec_new\n", stdout)
	require.Contains(t, stderr, "the secret before is of no use any more")
}

func TestMoveAwayFromControllersIsRefused(t *testing.T) {
	t.Parallel()
	f := newFakeRunners(t)
	f.phases = []*runnersv1.Move{{Phase: runnersv1.MovePhase_MOVE_PHASE_DONE}}
	token := filepath.Join(t.TempDir(), "eu-2.token")
	require.NoError(t, os.WriteFile(token, []byte("lsp_there\n"), 0o600))
	move := func(organization string) []string {
		return []string{
			"cells", "move", organization, "--to", "eu-2", "--to-url", "https://eu-2", "--to-token-file", token, "--yes",
			"--admission-server", f.flags[3],
		}
	}
	code, _, stderr := f.run(move("7")...)
	require.NotZero(t, code)
	require.Contains(t, stderr, `admission controller 12 "zones" of group`)
	require.Contains(t, stderr, "1 admission controllers of the organization do not move")
	require.Contains(t, stderr, "set --leave-controllers")
	_, is := f.last.(*runnersv1.ReportMoveRequest)
	require.True(t, is, "the move did not start")
	_, stderr = f.runs(append(move("7"), "--report")...)
	require.Contains(t, stderr, "does not move")
}

func TestReportOfAMoveIsPrinted(t *testing.T) {
	t.Parallel()
	f := newFakeRunners(t)
	token := filepath.Join(t.TempDir(), "eu-2.token")
	require.NoError(t, os.WriteFile(token, []byte("lsp_there\n"), 0o600))
	move := []string{"cells", "move", "7", "--to", "eu-2", "--to-url", "https://eu-2", "--to-token-file", token}
	stdout, _ := f.runs(append(move, "--report")...)
	require.Equal(t, `4 pipelines, 5 runners and 6 artifacts (7.5 MB) move to cell eu-2.
3 jobs wait. They are picked there, and not here from now on.
2 jobs run. They end here, and their pipelines follow them.
2 agents and 1 workspaces cannot move: terminate the workspaces and revoke the agents first.
Runners of the instance that take its jobs now stay here: 12, 13.
No runner there takes 1 of the jobs that wait:
  job 71 "compile", tags: gpu, linux
`, stdout)
	asked, is := f.last.(*runnersv1.ReportMoveRequest)
	require.True(t, is)
	require.Equal(t, "lsp_there", asked.GetToToken())
	require.Equal(t, personal, asked.GetToken())
	require.EqualValues(t, 7, asked.GetOrganizationId())
	code, _, stderr := f.run(append(move, "--yes")...)
	require.Equal(t, 8, code)
	require.Contains(t, stderr, "has 2 agents and 1 workspaces, which cannot move")
	code, _, stderr = f.run("cells", "move", "7", "--to", "eu-2")
	require.NotZero(t, code)
	require.Contains(t, stderr, "--to-token-file is missing")
	code, _, stderr = f.run("cells", "move", "7", "--to", "EU")
	require.NotZero(t, code)
	require.Contains(t, stderr, "--to")
}

func TestCanceledMoveIsFollowedToItsEnd(t *testing.T) {
	t.Parallel()
	f := newFakeRunners(t)
	f.phases = []*runnersv1.Move{
		{Phase: runnersv1.MovePhase_MOVE_PHASE_CANCELING, Message: "canceled by an administrator"},
		{Phase: runnersv1.MovePhase_MOVE_PHASE_CANCELED, Message: "canceled by an administrator"},
	}
	_, stderr := f.runs("cells", "move", "7", "--cancel")
	require.Equal(t, "canceling: canceled by an administrator\ncanceled: canceled by an administrator\n", stderr)
}

func (f *fakeRunners) CancelArrival(
	_ context.Context, r *connect.Request[runnersv1.CancelArrivalRequest],
) (*connect.Response[runnersv1.CancelArrivalResponse], error) {
	f.record(r.Msg)
	return connect.NewResponse(&runnersv1.CancelArrivalResponse{Move: &runnersv1.Move{Cell: "eu-1"}}), nil
}

func TestArrivalIsCanceledOnceItIsConfirmed(t *testing.T) {
	t.Parallel()
	f := newFakeRunners(t)
	code, _, stderr := f.run("cells", "move", "7", "--cancel-arrival")
	require.Equal(t, 2, code)
	require.Contains(t, stderr, "What has arrived of organization 7 is removed from this cell.")
	require.Nil(t, f.last)
	_, stderr = f.runs("cells", "move", "7", "--cancel-arrival", "--yes")
	require.Equal(t, "canceled the move of organization 7 from cell eu-1\n", stderr)
	f.requireLast(&runnersv1.CancelArrivalRequest{OrganizationId: 7, Token: personal})
}

func TestMovesAreListed(t *testing.T) {
	t.Parallel()
	stdout, _ := newFakeRunners(t).runs("cells", "moves")
	require.Equal(t, `ORGANIZATION   DIRECTION   CELL   PHASE   AGE     MESSAGE
7              to          eu-2   moved   never   cell eu-2 is away
8              from        eu-3   open    never   
`, stdout)
}

func TestProgressOfAMoveIsOneLine(t *testing.T) {
	t.Parallel()
	require.Equal(t, "handing_over: 5 pipelines are left, 2 of them with running jobs", moveProgress(&runnersv1.Move{
		Phase: runnersv1.MovePhase_MOVE_PHASE_HANDING_OVER, PipelinesLeft: 5, PipelinesRunning: 2,
	}))
	require.Equal(t, "copying: the token expired", moveProgress(&runnersv1.Move{
		Phase: runnersv1.MovePhase_MOVE_PHASE_COPYING, Message: "the token expired",
	}))
}
