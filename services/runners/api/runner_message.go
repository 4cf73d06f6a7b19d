package api

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/services/runners/runner"
)

func (s *runnerService) message(ctx context.Context, r runner.Runner) (*runnersv1.Runner, error) {
	messages, err := s.messages(ctx, []runner.Runner{r})
	if err != nil {
		return nil, err
	}
	return messages[0], nil
}

func (s *runnerService) messages(ctx context.Context, runners []runner.Runner) ([]*runnersv1.Runner, error) {
	ids := make([]int64, len(runners))
	for i := range runners {
		ids[i] = runners[i].ID
	}
	contacts, err := s.runners.LastContacts(ctx, ids...)
	if err != nil {
		return nil, err
	}
	now := s.now()
	messages := make([]*runnersv1.Runner, len(runners))
	for i := range runners {
		messages[i] = runnerMessage(&runners[i], contacts[runners[i].ID], now)
	}
	return messages, nil
}

func runnerMessage(r *runner.Runner, contact, now time.Time) *runnersv1.Runner {
	out := &runnersv1.Runner{
		Id: r.ID, Type: types[r.Type], OrganizationId: r.OrganizationID, GroupId: r.GroupID,
		Status: statuses[runner.StatusOf(r.CreatedAt, contact, now)], ContactedAt: timestamp(contact),
		CreatedBy: r.CreatedBy, CreatedAt: timestamp(r.CreatedAt), TokenExpiresAt: timestamp(r.TokenExpiresAt),
		Settings: &runnersv1.RunnerSettings{
			Description: r.Description, MaintenanceNote: r.MaintenanceNote, Tags: r.Tags, RunUntagged: r.RunUntagged,
			Locked: r.Locked, Protected: r.Protected, Paused: r.Paused, ProjectIds: r.ProjectIDs, UserIds: r.UserIDs,
			GroupIds: r.GroupIDs,
		},
	}
	if r.MaximumTimeout > 0 {
		out.Settings.MaximumTimeout = durationpb.New(r.MaximumTimeout)
	}
	return out
}

func (s *runnerService) managerMessage(m runner.Manager) *runnersv1.Manager {
	return &runnersv1.Manager{
		Id: m.ID, SystemId: m.SystemID, Status: statuses[m.Status(s.now())], ContactedAt: timestamp(m.ContactedAt),
		Version: m.Info.Version, Platform: m.Info.Platform, Architecture: m.Info.Architecture,
		Executor: m.Info.Executor, Address: m.Address,
	}
}
