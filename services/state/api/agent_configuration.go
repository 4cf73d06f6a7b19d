package api

import (
	"context"
	"math"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/types/known/durationpb"

	"lockstep.internal/libs/fault"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/authz"
)

func (s *agentService) ConfigureAgent(
	ctx context.Context,
	r *connect.Request[statev1.ConfigureAgentRequest],
) (*connect.Response[statev1.ConfigureAgentResponse], error) {
	a, err := s.agent(ctx, r.Msg.GetId(), authz.ManageAgents)
	if err != nil {
		return nil, err
	}
	change, err := settings(r.Msg.GetConfiguration())
	if err != nil {
		return nil, err
	}
	if a, err = s.directory.ConfigureAgent(ctx, a.ID, change, r.Msg.GetReset_()...); err != nil {
		return nil, err
	}
	shown, err := s.messages(ctx, a)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.ConfigureAgentResponse{Agent: shown[0]}), nil
}

func (s *agentService) RequestResync(
	ctx context.Context,
	r *connect.Request[statev1.RequestResyncRequest],
) (*connect.Response[statev1.RequestResyncResponse], error) {
	a, err := s.agent(ctx, r.Msg.GetId(), authz.ManageAgents)
	if err != nil {
		return nil, err
	}
	if a.Revoked {
		return nil, fault.New(errcode.FailedPrecondition, "agent %q is revoked: it answers no request", a.Name)
	}
	var nonces map[int64]string
	err = libpostgres.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		store, cause := s.ingestStores.In(tx), events.ResyncRequestCauseOperator
		nonces, err = s.ingest.RequestResyncs(ctx, store, []int64{a.ID}, cause, s.now())
		return err
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.RequestResyncResponse{Nonce: nonces[a.ID]}), nil
}

// messages returns agents with their last resyncs, blocks and silences.
func (s *agentService) messages(ctx context.Context, agents ...agent.Agent) ([]*statev1.Agent, error) {
	ids := convertAll(agents, func(a agent.Agent) int64 { return a.ID })
	resyncs, err := s.directory.LastResyncs(ctx, ids)
	if err != nil {
		return nil, err
	}
	blocks, err := s.directory.AgentBlocks(ctx, ids...)
	if err != nil {
		return nil, err
	}
	silent, err := s.directory.SilentSince(ctx, ids)
	if err != nil {
		return nil, err
	}
	return convertAll(agents, func(a agent.Agent) *statev1.Agent {
		out := agentMessage(a, s.prefix)
		out.SilentSince = timestamp(silent[a.ID])
		if b, blocked := blocks[a.ID]; blocked {
			out.Block = &statev1.AgentBlock{Reason: b.Reason, BlockedAt: timestamp(b.At), BlockedUntil: timestamp(b.Until)}
		}
		if last, begun := resyncs[a.ID]; begun {
			out.LastResync = &statev1.Resync{
				Id:      last.ID,
				Cause:   last.Cause,
				Nonce:   last.Nonce,
				Outcome: last.Outcome,
				Count:   last.Count,
				BegunAt: timestamp(last.BegunAt),
				EndedAt: timestamp(last.EndedAt),
			}
		}
		return out
	}), nil
}

func configuration(c agent.Configuration, revision int64) *statev1.AgentConfiguration {
	workspaces, perUser := limit(c.MaxWorkspaces), limit(c.MaxWorkspacesPerUser)
	targets := convertAll(c.RelayTargets, func(t agent.RelayTarget) *statev1.RelayTarget {
		return &statev1.RelayTarget{Name: t.Name, Address: t.Address}
	})
	return &statev1.AgentConfiguration{
		Revision: revision, FullResyncInterval: durationpb.New(c.FullResyncInterval),
		UnschedulablePatience: durationpb.New(c.UnschedulablePatience), StopPatience: durationpb.New(c.StopPatience),
		MaxWorkspaces: &workspaces, MaxWorkspacesPerUser: &perUser,
		StopAfterRunning: durationpb.New(c.StopAfterRunning), TerminateAfterStopped: durationpb.New(c.TerminateAfterStopped),
		MaxAge: durationpb.New(c.MaxAge), ExpiryWarning: durationpb.New(c.ExpiryWarning),
		StopAfterIdle:    durationpb.New(c.StopAfterIdle),
		RelayTargets:     &statev1.RelayTargets{Targets: targets},
		IngressPeers:     &statev1.StringList{Values: c.Manifests.IngressPeers},
		DnsPeers:         &statev1.StringList{Values: c.Manifests.DNSPeers},
		PrivateRanges:    &statev1.StringList{Values: c.Manifests.PrivateRanges},
		EgressAllowed:    &statev1.StringList{Values: c.Manifests.EgressAllowed},
		ProgressDeadline: durationpb.New(c.Manifests.ProgressDeadline), ResourceQuota: &c.Manifests.ResourceQuota,
		StorageClass: &c.StorageClass,
		DefaultCpu:   &c.Defaults.CPU, DefaultMemory: &c.Defaults.Memory, DefaultVolumeSize: &c.Defaults.VolumeSize,
		MaxCpu: &c.Maximums.CPU, MaxMemory: &c.Maximums.Memory, MaxVolumeSize: &c.Maximums.VolumeSize,
		TerminationPatience: durationpb.New(c.TerminationPatience), AgentImage: &c.Manifests.AgentImage,
		SshAuthorities: &statev1.StringList{Values: c.Manifests.SSHAuthorities},
		OwnerAccess:    &c.Manifests.OwnerAccess, IdleCountsProcesses: &c.IdleCountsProcesses,
	}
}

func limit(n int) int32 { return int32(min(max(n, agent.Unlimited), math.MaxInt32)) }

// settings returns the settings that a request changes.
func settings(c *statev1.AgentConfiguration) (agent.Settings, error) {
	var s agent.Settings
	for _, d := range []struct {
		field string
		given *durationpb.Duration
		to    **agent.Milliseconds
	}{
		{"full_resync_interval", c.GetFullResyncInterval(), &s.FullResyncInterval},
		{"unschedulable_patience", c.GetUnschedulablePatience(), &s.UnschedulablePatience},
		{"stop_patience", c.GetStopPatience(), &s.StopPatience},
		{"stop_after_running", c.GetStopAfterRunning(), &s.StopAfterRunning},
		{"terminate_after_stopped", c.GetTerminateAfterStopped(), &s.TerminateAfterStopped},
		{"max_age", c.GetMaxAge(), &s.MaxAge},
		{"stop_after_idle", c.GetStopAfterIdle(), &s.StopAfterIdle},
		{"expiry_warning", c.GetExpiryWarning(), &s.ExpiryWarning},
		{"progress_deadline", c.GetProgressDeadline(), &s.ProgressDeadline},
		{"termination_patience", c.GetTerminationPatience(), &s.TerminationPatience},
	} {
		if d.given == nil {
			continue
		}
		if err := d.given.CheckValid(); err != nil {
			return s, fault.New(errcode.InvalidArgument, "%s: %v", d.field, err).With("field", d.field)
		}
		value := agent.Milliseconds(d.given.AsDuration())
		*d.to = &value
	}
	if c != nil && c.MaxWorkspaces != nil {
		n := int(c.GetMaxWorkspaces())
		s.MaxWorkspaces = &n
	}
	if c != nil && c.MaxWorkspacesPerUser != nil {
		n := int(c.GetMaxWorkspacesPerUser())
		s.MaxWorkspacesPerUser = &n
	}
	if c.GetRelayTargets() != nil {
		targets := convertAll(c.GetRelayTargets().GetTargets(), func(t *statev1.RelayTarget) agent.RelayTarget {
			return agent.RelayTarget{Name: t.GetName(), Address: t.GetAddress()}
		})
		s.RelayTargets = &targets
	}
	if c == nil {
		return s, nil
	}
	for _, list := range []struct {
		given *statev1.StringList
		to    **[]string
	}{
		{c.GetIngressPeers(), &s.IngressPeers},
		{c.GetDnsPeers(), &s.DNSPeers},
		{c.GetPrivateRanges(), &s.PrivateRanges},
		{c.GetEgressAllowed(), &s.EgressAllowed},
		{c.GetSshAuthorities(), &s.SSHAuthorities},
	} {
		if list.given != nil {
			values := append([]string{}, list.given.GetValues()...)
			*list.to = &values
		}
	}
	s.ResourceQuota, s.StorageClass, s.AgentImage = c.ResourceQuota, c.StorageClass, c.AgentImage
	s.OwnerAccess, s.IdleCountsProcesses = c.OwnerAccess, c.IdleCountsProcesses
	s.DefaultCPU, s.DefaultMemory, s.DefaultVolumeSize = c.DefaultCpu, c.DefaultMemory, c.DefaultVolumeSize
	s.MaxCPU, s.MaxMemory, s.MaxVolumeSize = c.MaxCpu, c.MaxMemory, c.MaxVolumeSize
	return s, nil
}
