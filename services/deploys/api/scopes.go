package api

import (
	"lockstep.internal/libs/access"
	"lockstep.internal/schemas/gen/lockstep/deploys/v1/deploysv1connect"
)

// Scopes returns the scope that each method needs.
func Scopes() access.Scopes {
	return access.Scopes{
		deploysv1connect.ClusterServiceListClustersProcedure:   access.ScopeRead,
		deploysv1connect.ClusterServiceReleaseClusterProcedure: access.ScopeAdmin,

		deploysv1connect.OperationServiceRebuildProcedure: access.ScopeAdmin,

		deploysv1connect.RolloutServiceGetRolloutProcedure:    access.ScopeRead,
		deploysv1connect.RolloutServiceGetStatsProcedure:      access.ScopeRead,
		deploysv1connect.RolloutServiceListRolloutsProcedure:  access.ScopeRead,
		deploysv1connect.RolloutServiceWatchRolloutsProcedure: access.ScopeRead,

		deploysv1connect.SinkServiceBackfillSinkProcedure: access.ScopeAdmin,
		deploysv1connect.SinkServiceListSinksProcedure:    access.ScopeRead,
		deploysv1connect.SinkServiceResendFactProcedure:   access.ScopeAdmin,
	}
}
