package ingest

import (
	"context"
	"fmt"
	"time"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/agent"
)

// RequestResyncs requests a full resync from each existing agent, and returns the nonces by agent.
func (i *Ingest) RequestResyncs(
	ctx context.Context, s ResyncRequestStore, agentIDs []int64, cause events.ResyncRequestCause, at time.Time,
) (map[int64]string, error) {
	// Reading the versions of 50,000 workspaces takes 0.2 s. Batches of the agent wait for its lock, so read before.
	unlocked, err := s.Clusters(ctx, agentIDs)
	if err != nil {
		return nil, err
	}
	highest := make(map[int64]agent.Versions, len(unlocked))
	for id, cluster := range unlocked {
		if highest[id], err = s.HighestVersions(ctx, *cluster); err != nil {
			return nil, err
		}
	}
	clusters, err := s.LockClusters(ctx, agentIDs)
	if err != nil {
		return nil, err
	}
	nonces := make(map[int64]string, len(clusters))
	for id, cluster := range clusters {
		if before := unlocked[id]; before == nil || before.Epoch != cluster.Epoch {
			if highest[id], err = s.HighestVersions(ctx, *cluster); err != nil {
				return nil, err
			}
		}
		if nonces[id], err = i.requestResync(ctx, s, id, highest[id], cause, at); err != nil {
			return nil, err
		}
	}
	return nonces, nil
}

// RequestAllResyncs requests a full resync from every agent that is not revoked.
func (i *Ingest) RequestAllResyncs(
	ctx context.Context, s ResyncRequestStore, cause events.ResyncRequestCause, at time.Time,
) error {
	agentIDs, err := s.LockActiveAgents(ctx)
	if err != nil {
		return err
	}
	_, err = i.RequestResyncs(ctx, s, agentIDs, cause, at)
	return err
}

// requestResync requests a full resync from one agent and returns the nonce, which contains the highest versions. With
// ReadModelOnly it does nothing.
func (i *Ingest) requestResync(
	ctx context.Context, s Outbox, agentID int64, highest agent.Versions, cause events.ResyncRequestCause, at time.Time,
) (string, error) {
	if i.ReadModelOnly {
		return "", nil
	}
	nonce, err := agent.NewNonce(highest)
	if err != nil {
		return "", fmt.Errorf("request a resync of agent %d: %w", agentID, err)
	}
	request, err := i.Encoder.ResyncRequest(ctx, agentID, nonce, cause, at)
	if err != nil {
		return "", err
	}
	return nonce, s.InsertMessages(ctx, request)
}
