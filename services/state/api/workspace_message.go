package api

import (
	"context"
	"strings"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/postgres"
	"lockstep.internal/services/state/workspace"
)

func workspaceMessage(w workspace.Workspace) *statev1.Workspace {
	return &statev1.Workspace{
		Id:        w.ID.String(),
		Name:      w.Name,
		ProjectId: w.ProjectID,
		AgentId:   w.AgentID,
		UserId:    w.UserID,
		Template:  w.Template,
		Namespace: w.Namespace,
		DesiredState: desiredState(
			w.DesiredState,
		),
		ActualState:     actualState(w.ActualState),
		Reason:          w.Reason,
		Message:         w.Message,
		DesiredRevision: w.DesiredRevision,
		AppliedRevision: w.AppliedRevision,
		CreatedAt:       timestamp(w.CreatedAt),
		DesiredStateChangedAt: timestamp(
			w.DesiredStateChangedAt,
		),
		ActualStateChangedAt: timestamp(w.ActualStateChangedAt),
		Spec:                 spec(w.Spec),
		StorageClass:         w.Spec.StorageClass,
		Shares:               shares(w),
		LastActivityAt:       timestamp(w.LastActivity.At),
		ExtendedUntil:        timestamp(w.ExtendedUntil),
	}
}

// actualState converts a stored state. Stored states are the names of the protobuf enum in lower case, without the
// prefix.
func actualState(s actualstate.State) statev1.ActualState {
	return statev1.ActualState(statev1.ActualState_value["ACTUAL_STATE_"+strings.ToUpper(string(s))])
}

// desiredState converts a stored state, like actualState.
func desiredState(s workspace.DesiredState) statev1.DesiredState {
	return statev1.DesiredState(statev1.DesiredState_value["DESIRED_STATE_"+strings.ToUpper(string(s))])
}

func desiredStates() map[statev1.DesiredState]workspace.DesiredState {
	out := map[statev1.DesiredState]workspace.DesiredState{}
	for _, s := range workspace.DesiredStates() {
		out[desiredState(s)] = s
	}
	return out
}

// filter returns the filter of a request, limited to what the caller may see.
func (s *workspaceService) filter(ctx context.Context, f *statev1.WorkspaceFilter) (postgres.WorkspaceFilter, error) {
	visible, err := s.visible(ctx)
	if err != nil {
		return postgres.WorkspaceFilter{}, err
	}
	out := postgres.WorkspaceFilter{
		ProjectIDs:        visible,
		ProjectID:         f.GetProjectId(),
		AgentID:           f.GetAgentId(),
		UserID:            f.GetUserId(),
		IncludeTerminated: f.GetIncludeTerminated(),
	}
	for _, asked := range f.GetActualStates() {
		name, ok := strings.CutPrefix(asked.String(), "ACTUAL_STATE_")
		if !ok || asked == statev1.ActualState_ACTUAL_STATE_UNSPECIFIED {
			return out, fault.New(errcode.InvalidArgument, "actual_states: %s is not a state", asked).
				With("field", "filter.actual_states")
		}
		out.ActualStates = append(out.ActualStates, actualstate.State(strings.ToLower(name)))
	}
	for _, asked := range f.GetDesiredStates() {
		wanted, ok := desiredStates()[asked]
		if !ok {
			return out, fault.New(errcode.InvalidArgument, "desired_states: %s is not a state", asked).
				With("field", "filter.desired_states")
		}
		out.DesiredStates = append(out.DesiredStates, wanted)
	}
	if len(f.GetWorkspaces()) > maxPageSize {
		return out, fault.New(errcode.InvalidArgument, "workspaces: has more than %d references", maxPageSize).
			With("field", "filter.workspaces")
	}
	for _, ref := range f.GetWorkspaces() {
		r, err := referenceOf(ref)
		if err != nil {
			return out, err
		}
		out.References = append(out.References, r)
	}
	return out, nil
}

// The reason and message of a workspace that waits for an agent whose watcher never reported.
const (
	reasonNeverConnected  = "WatcherNeverConnected"
	messageNeverConnected = "the watcher of its agent has never connected"
)

// messages returns workspaces with their next expiry, since when they are stale, and whether their agent has never
// connected.
func (s *workspaceService) messages(
	ctx context.Context,
	workspaces ...workspace.Workspace,
) ([]*statev1.Workspace, error) {
	seen := map[int64]bool{}
	var agents []int64
	for _, w := range workspaces {
		if !seen[w.AgentID] {
			seen[w.AgentID] = true
			agents = append(agents, w.AgentID)
		}
	}
	configurations, err := s.directory.AgentConfigurations(ctx, agents)
	if err != nil {
		return nil, err
	}
	silent, err := s.directory.SilentSince(ctx, agents)
	if err != nil {
		return nil, err
	}
	return convertAll(workspaces, func(w workspace.Workspace) *statev1.Workspace {
		out := workspaceMessage(w)
		since, silent := silent[w.AgentID]
		out.StaleSince = timestamp(since)
		if neverReported := silent && since.IsZero(); neverReported && w.ActualState == actualstate.CreationRequested {
			out.Reason, out.Message = reasonNeverConnected, messageNeverConnected
		}
		policies := configurations[w.AgentID].AgePolicies()
		if end, ends := w.Expiry(policies); ends {
			out.ExpiresAt, out.ExpiryPolicy = timestamp(end.At), string(end.Policy)
		}
		if at, stops := w.IdleStopsAt(policies); stops {
			out.IdleStopsAt = timestamp(at)
		}
		out.KeptAliveBecause = w.KeptAliveBecause(policies)
		return out
	}), nil
}
