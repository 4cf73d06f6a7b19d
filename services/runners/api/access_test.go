package api_test

import (
	"context"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/schemas/gen/lockstep/runners/v1/runnersv1connect"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/tools/testkit/bodyflood"
)

// call is a method with a valid request about a pipeline and a job of project 4.
type call struct {
	name  string
	least int64 // the user with the lowest role that may call it
	do    func(ctx context.Context, c clients, pipeline, job int64) error
}

func calls() []call {
	return []call{
		{"GetPipeline", reader, func(ctx context.Context, c clients, pipeline, _ int64) error {
			_, err := c.GetPipeline(ctx, connect.NewRequest(&runnersv1.GetPipelineRequest{Id: pipeline}))
			return err
		}},
		{"ListPipelines", reader, func(ctx context.Context, c clients, _, _ int64) error {
			_, err := c.ListPipelines(ctx, connect.NewRequest(&runnersv1.ListPipelinesRequest{ProjectId: projectID}))
			return err
		}},
		{"WatchPipeline", reader, func(ctx context.Context, c clients, pipeline, _ int64) error {
			stream, err := c.WatchPipeline(ctx, connect.NewRequest(&runnersv1.WatchPipelineRequest{Id: pipeline}))
			if err != nil {
				return err
			}
			defer stream.Close()
			stream.Receive()
			return stream.Err()
		}},
		{"GetJob", reader, func(ctx context.Context, c clients, _, id int64) error {
			_, err := c.GetJob(ctx, connect.NewRequest(&runnersv1.GetJobRequest{Id: id}))
			return err
		}},
		{"ListJobs", reader, func(ctx context.Context, c clients, _, _ int64) error {
			_, err := c.ListJobs(ctx, connect.NewRequest(&runnersv1.ListJobsRequest{ProjectId: projectID}))
			return err
		}},
		{"ListJobs of a pipeline", reader, func(ctx context.Context, c clients, pipeline, _ int64) error {
			_, err := c.ListJobs(ctx, connect.NewRequest(&runnersv1.ListJobsRequest{PipelineId: pipeline}))
			return err
		}},
		{"ExplainJob", reader, func(ctx context.Context, c clients, _, id int64) error {
			_, err := c.ExplainJob(ctx, connect.NewRequest(&runnersv1.ExplainJobRequest{Id: id}))
			return err
		}},
		{"CreatePipeline", developer, func(ctx context.Context, c clients, _, _ int64) error {
			_, err := c.CreatePipeline(ctx, connect.NewRequest(&runnersv1.CreatePipelineRequest{
				ProjectId: projectID, File: []byte("a: {script: x}"),
			}))
			return err
		}},
		{"CreatePipeline, protected", maintainer, func(ctx context.Context, c clients, _, _ int64) error {
			_, err := c.CreatePipeline(ctx, connect.NewRequest(&runnersv1.CreatePipelineRequest{
				ProjectId: projectID, File: []byte("a: {script: x}"), Protected: true,
			}))
			return err
		}},
		{"CancelJob", developer, func(ctx context.Context, c clients, _, id int64) error {
			_, err := c.CancelJob(ctx, connect.NewRequest(&runnersv1.CancelJobRequest{Id: id}))
			return err
		}},
		{"RetryJob", maintainer, func(ctx context.Context, c clients, _, id int64) error {
			_, err := c.RetryJob(ctx, connect.NewRequest(&runnersv1.RetryJobRequest{Id: id}))
			return err
		}},
		{"CancelPipeline", developer, func(ctx context.Context, c clients, pipeline, _ int64) error {
			_, err := c.CancelPipeline(ctx, connect.NewRequest(&runnersv1.CancelPipelineRequest{Id: pipeline}))
			return err
		}},
		{"RetryPipeline", maintainer, func(ctx context.Context, c clients, pipeline, _ int64) error {
			_, err := c.RetryPipeline(ctx, connect.NewRequest(&runnersv1.RetryPipelineRequest{Id: pipeline}))
			return err
		}},
	}
}

// TestEveryMethodNeedsItsRole calls each method on a protected pipeline with every role. The roles are in ascending
// order of their rights.
func TestEveryMethodNeedsItsRole(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, c := range calls() {
		allowed := false
		for _, user := range []int64{stranger, reader, developer, maintainer, admin} {
			allowed = allowed || user == c.least
			made := f.create("a: {script: x}\nb: {script: x}", func(r *runnersv1.CreatePipelineRequest) { r.Protected = true })
			if c.name == "RetryJob" || c.name == "RetryPipeline" {
				f.run(made.GetJobs()[0].GetId(), job.Result{Reason: job.ScriptFailure})
			}
			err := c.do(t.Context(), f.as(user), made.GetId(), made.GetJobs()[0].GetId())
			switch {
			case allowed:
				require.NoError(t, err, "%s by user %d", c.name, user)
			case user == stranger:
				requireCode(t, errcode.NotFound, err, c.name)
				require.ErrorContains(t, err, "does not exist")
			default:
				requireCode(t, errcode.PermissionDenied, err, c.name, user)
			}
		}
	}
}

func TestInvalidTokensAreRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, c := range map[string]struct {
		with string
		code errcode.Code
	}{
		"no authorization": {"", errcode.Unauthenticated},
		"another token":    {"Bearer lsp_x", errcode.Unauthenticated},
		"a blocked user":   {"Bearer " + f.token(blocked, access.ScopeAdmin), errcode.PermissionDenied},
		"an unknown user":  {"Bearer " + f.token(99, access.ScopeAdmin), errcode.Unauthenticated},
	} {
		for _, call := range calls() {
			err := call.do(t.Context(), f.with(c.with), 1, 1)
			require.Equal(t, c.code, fault.CodeOf(err), "%s with %s: %v", call.name, name, err)
		}
		for _, path := range []string{"/api/v4/jobs/1/trace", "/api/v4/projects/4/jobs/1/artifacts"} {
			response := f.get(c.with, path)
			require.Equal(t, c.code, fault.CodeOf(fault.FromHTTP(response)), "%s with %s", path, name)
		}
	}
}

func TestTokenWithTheScopeReadChangesNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	made := f.create("a: {script: x}")
	for _, c := range calls() {
		err := c.do(t.Context(), f.with("Bearer "+f.token(admin, access.ScopeRead)), made.GetId(), made.GetJobs()[0].GetId())
		if c.least == reader {
			require.NoError(t, err, c.name)
			continue
		}
		requireCode(t, errcode.PermissionDenied, err, c.name)
	}
}

func TestRebuildNeedsAnAdministrator(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, user := range []int64{maintainer, admin} {
		stream, err := f.as(user).Rebuild(t.Context(), connect.NewRequest(&runnersv1.RebuildRequest{Check: true}))
		require.NoError(t, err)
		for stream.Receive() {
		}
		if user != admin {
			requireCode(t, errcode.PermissionDenied, stream.Err())
		} else {
			require.NoError(t, stream.Err())
		}
		require.NoError(t, stream.Close())
	}
	require.Equal(t, 1, f.rebuilt)
}

func TestMovesNeedAnAdministrator(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, test := range map[string]struct {
		do func(ctx context.Context, c clients) error
		// code for an administrator; empty for success.
		code fault.Code
	}{
		"ReportMove": {func(ctx context.Context, c clients) error {
			_, err := c.ReportMove(ctx, connect.NewRequest(&runnersv1.ReportMoveRequest{OrganizationId: 1}))
			return err
		}, errcode.FailedPrecondition},
		"StartMove": {func(ctx context.Context, c clients) error {
			_, err := c.StartMove(ctx, connect.NewRequest(&runnersv1.StartMoveRequest{OrganizationId: 1}))
			return err
		}, errcode.FailedPrecondition},
		"GetMove": {func(ctx context.Context, c clients) error {
			_, err := c.GetMove(ctx, connect.NewRequest(&runnersv1.GetMoveRequest{OrganizationId: 1}))
			return err
		}, errcode.NotFound},
		"ListMoves": {func(ctx context.Context, c clients) error {
			_, err := c.ListMoves(ctx, connect.NewRequest(&runnersv1.ListMovesRequest{}))
			return err
		}, ""},
		"CancelArrival": {func(ctx context.Context, c clients) error {
			_, err := c.CancelArrival(ctx, connect.NewRequest(&runnersv1.CancelArrivalRequest{OrganizationId: 1}))
			return err
		}, errcode.FailedPrecondition},
		"CancelMove": {func(ctx context.Context, c clients) error {
			_, err := c.CancelMove(ctx, connect.NewRequest(&runnersv1.CancelMoveRequest{OrganizationId: 1}))
			return err
		}, errcode.NotFound},
	} {
		requireCode(t, errcode.PermissionDenied, test.do(t.Context(), f.as(maintainer)), name)
		if name != "GetMove" && name != "ListMoves" {
			writer := f.with("Bearer " + f.token(admin, access.ScopeWrite))
			requireCode(t, errcode.PermissionDenied, test.do(t.Context(), writer), name)
		}
		if err := test.do(t.Context(), f.as(admin)); test.code == "" {
			require.NoError(t, err, name)
		} else {
			requireCode(t, test.code, err, name)
		}
	}
}

// No other test runs meanwhile: the heap is measured.
func TestMemoryIsBoundedBeforeAuthentication(t *testing.T) {
	f := newFixture(t)
	bodyflood.RequireRefused(t, f.url+runnersv1connect.PipelineServiceCreatePipelineProcedure, func() {
		_, err := f.as(reader).ListPipelines(t.Context(), connect.NewRequest(&runnersv1.ListPipelinesRequest{
			ProjectId: projectID,
		}))
		require.NoError(t, err)
	})
}
