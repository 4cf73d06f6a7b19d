package api

import (
	"lockstep.internal/libs/access"
	"lockstep.internal/schemas/gen/lockstep/runners/v1/runnersv1connect"
)

// Scopes returns the scope that each method needs. Methods that give a program access need [access.ScopeAdmin].
func Scopes() access.Scopes {
	return access.Scopes{
		// Package arrival serves these, with personal access tokens.
		runnersv1connect.ArrivalServiceBeginArrivalProcedure:  access.ScopeAdmin,
		runnersv1connect.ArrivalServiceDescribeCellProcedure:  access.ScopeAdmin,
		runnersv1connect.ArrivalServiceEndArrivalProcedure:    access.ScopeAdmin,
		runnersv1connect.ArrivalServiceOpenArrivalProcedure:   access.ScopeAdmin,
		runnersv1connect.ArrivalServiceStoreArtifactProcedure: access.ScopeAdmin,
		runnersv1connect.ArrivalServiceStorePipelineProcedure: access.ScopeAdmin,

		runnersv1connect.JobServiceCancelJobProcedure:  access.ScopeWrite,
		runnersv1connect.JobServiceExplainJobProcedure: access.ScopeRead,
		runnersv1connect.JobServiceGetJobProcedure:     access.ScopeRead,
		runnersv1connect.JobServiceListJobsProcedure:   access.ScopeRead,
		runnersv1connect.JobServiceRetryJobProcedure:   access.ScopeWrite,

		runnersv1connect.MoveServiceCancelArrivalProcedure: access.ScopeAdmin,
		runnersv1connect.MoveServiceCancelMoveProcedure:    access.ScopeAdmin,
		runnersv1connect.MoveServiceGetMoveProcedure:       access.ScopeRead,
		runnersv1connect.MoveServiceListMovesProcedure:     access.ScopeRead,
		runnersv1connect.MoveServiceReportMoveProcedure:    access.ScopeAdmin,
		runnersv1connect.MoveServiceStartMoveProcedure:     access.ScopeAdmin,

		runnersv1connect.OperationServiceRebuildProcedure: access.ScopeAdmin,

		runnersv1connect.PipelineServiceCancelPipelineProcedure: access.ScopeWrite,
		runnersv1connect.PipelineServiceCreatePipelineProcedure: access.ScopeWrite,
		runnersv1connect.PipelineServiceGetPipelineProcedure:    access.ScopeRead,
		runnersv1connect.PipelineServiceListPipelinesProcedure:  access.ScopeRead,
		runnersv1connect.PipelineServiceRetryPipelineProcedure:  access.ScopeWrite,
		runnersv1connect.PipelineServiceWatchPipelineProcedure:  access.ScopeRead,

		runnersv1connect.RunnerServiceCreateRunnerProcedure:     access.ScopeAdmin,
		runnersv1connect.RunnerServiceDeleteRunnerProcedure:     access.ScopeAdmin,
		runnersv1connect.RunnerServiceGetRunnerProcedure:        access.ScopeRead,
		runnersv1connect.RunnerServiceListRunnersProcedure:      access.ScopeRead,
		runnersv1connect.RunnerServiceResetRunnerTokenProcedure: access.ScopeAdmin,
		runnersv1connect.RunnerServiceUpdateRunnerProcedure:     access.ScopeAdmin,
	}
}
