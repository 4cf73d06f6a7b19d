package api

import (
	"cmp"
	"context"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
	"lockstep.internal/services/deploys/postgres"
)

const (
	day = 24 * time.Hour
	// defaultPeriod is the default length of the period.
	defaultPeriod        = 30 * day
	defaultStatWorkloads = 100
	maxStatWorkloads     = 1000
)

func (s *rolloutService) GetStats(
	ctx context.Context, r *connect.Request[deploysv1.GetStatsRequest],
) (*connect.Response[deploysv1.GetStatsResponse], error) {
	filter, err := s.filter(ctx, r.Msg.GetFilter())
	if err != nil {
		return nil, err
	}
	limit := cmp.Or(int(r.Msg.GetWorkloads()), defaultStatWorkloads)
	if limit < 0 || limit > maxStatWorkloads {
		return nil, fault.New(errcode.InvalidArgument, "workloads %d must be 1 to %d, or 0 for %d",
			limit, maxStatWorkloads, defaultStatWorkloads).With("field", "workloads")
	}
	if filter.Until.IsZero() {
		filter.Until = s.now().UTC()
	}
	if filter.Since.IsZero() {
		filter.Since = filter.Until.Add(-defaultPeriod)
	}
	if !filter.Since.Before(filter.Until) {
		return nil, fault.New(errcode.InvalidArgument, "since %s must be before until %s", filter.Since, filter.Until).
			With("field", "filter.since")
	}
	release, err := s.stats.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	total, workloads, err := s.rollouts.Stats(ctx, filter, limit)
	if err != nil {
		return nil, err
	}
	if total.Rollouts == 0 {
		if err := requireReader(ctx, s.stream); err != nil {
			return nil, err
		}
	}
	days := float64(filter.Until.Sub(filter.Since)) / float64(day)
	out := &deploysv1.GetStatsResponse{
		Total: statsMessage(&total, days), Since: timestamppb.New(filter.Since), Until: timestamppb.New(filter.Until),
	}
	for i := range workloads {
		w := &workloads[i]
		one := statsMessage(w, days)
		one.Workload = &deploysv1.Workload{
			ClusterUid: w.ClusterUID, Namespace: w.Namespace, Kind: w.Kind, Name: w.Name, AgentId: w.AgentID,
		}
		out.Workloads = append(out.Workloads, one)
	}
	return connect.NewResponse(out), nil
}

func statsMessage(s *postgres.Stats, days float64) *deploysv1.Stats {
	return &deploysv1.Stats{
		Rollouts: s.Rollouts, Running: s.Running, Completed: s.Completed, Superseded: s.Superseded,
		Cancelled: s.Cancelled, Unknown: s.Unknown, RolledBack: s.RolledBack,
		Changes: s.Changes, FailedChanges: s.FailedChanges, DurationP50: duration(s.P50), DurationP95: duration(s.P95),
		DeploysPerDay:     float64(s.Deploys) / days,
		ChangeFailureRate: share(s.FailedChanges, s.Changes), RollbackRate: share(s.RolledBack, s.Rollouts),
	}
}

// share returns some/all, or 0 if all is 0.
func share(some, all int64) float64 {
	if all == 0 {
		return 0
	}
	return float64(some) / float64(all)
}

func duration(d *time.Duration) *durationpb.Duration {
	if d == nil {
		return nil
	}
	return durationpb.New(*d)
}
