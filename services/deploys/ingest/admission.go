package ingest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/services/deploys/ownership"
)

// Projects returns the project of an agent, or [UnknownAgentError] if no such agent exists. It may wait for a short
// time while the directory is incomplete.
type Projects func(ctx context.Context, agentID int64) (int64, error)

// UnknownAgentError reports an observation by an agent that is not in the directory.
type UnknownAgentError struct{ AgentID int64 }

// Error tells the operator what to do.
func (e UnknownAgentError) Error() string {
	return fmt.Sprintf("agent %d: not in the directory; retry the message once the agent is registered", e.AgentID)
}

// Rejection is a message that cannot be processed. A retry has the same result.
type Rejection struct {
	Sequence uint64
	Err      error
}

// RejectedError lists all rejected messages of a batch. The caller dead-letters them and processes the rest again.
type RejectedError []Rejection

// Error shows the first rejection.
func (e RejectedError) Error() string {
	return fmt.Sprintf("%d messages rejected, first %d: %v", len(e), e[0].Sequence, e[0].Err)
}

// admit returns the messages to apply. It drops ticks by agents of other projects and releases that change nothing. It
// rejects all other messages about clusters of other projects.
func (b *batch) admit(ctx context.Context, messages []Message) ([]Message, error) {
	var rejected RejectedError
	admitted := make([]Message, 0, len(messages))
	// agents that join a cluster within the batch
	joined := map[int64]membership{}
	for _, m := range messages {
		o := m.Observation
		if !o.Relevant() {
			continue
		}
		if o.ClusterReleased != nil {
			if b.claims.Release(o, m.Sequence) {
				admitted = append(admitted, m)
			} else {
				b.logger.InfoContext(ctx, "ignored the release of a cluster because its claim has changed",
					slog.String(logkey.ClusterUID, o.ClusterUID), slog.Uint64(logkey.Sequence, m.Sequence))
			}
			continue
		}
		err := b.admitOne(ctx, m, joined)
		foreign, isForeign := errors.AsType[*ownership.ForeignError](err)
		if isForeign {
			b.metrics.Foreign()
		}
		_, isUnknown := errors.AsType[UnknownAgentError](err)
		switch {
		case err == nil:
			admitted = append(admitted, m)
		case isForeign && foreign.Tick:
		case isForeign, isUnknown:
			rejected = append(rejected, Rejection{Sequence: m.Sequence, Err: err})
		default:
			return nil, err
		}
	}
	if len(rejected) > 0 {
		return nil, rejected
	}
	return admitted, nil
}

// membership is the cluster of an agent, and how often the agent has moved.
type membership struct {
	clusterUID string
	moves      int64
}

func (b *batch) admitOne(ctx context.Context, m Message, joined map[int64]membership) error {
	o := m.Observation
	project, known := b.claims.Project(o.AgentID, m.Sequence)
	if !known {
		var err error
		if project, err = b.projects(ctx, o.AgentID); err != nil {
			return err
		}
		b.claims.AddReporter(o.AgentID, project, m.Sequence)
	}
	in, isJoined := joined[o.AgentID]
	if !isJoined {
		a := b.agents.Agent(o.AgentID)
		in = membership{clusterUID: a.ClusterUID, moves: a.Rows.Clusters}
	}
	isMove := moves(o, in.clusterUID)
	if isMove && in.moves >= b.limits.Clusters {
		return nil // it has no effect, so it claims no cluster
	}
	if err := b.claims.Admit(o, m.Sequence, project, in.clusterUID); err != nil {
		return err
	}
	if isMove {
		in.moves++
	}
	if in.clusterUID == "" || o.ResyncBegun != nil {
		in.clusterUID = o.ClusterUID
		joined[o.AgentID] = in
	}
	return nil
}
