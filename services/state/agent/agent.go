// Package agent holds what is known about agents and the clusters that they connect: configuration,
// quotas, versions and resyncs. It is pure.
package agent

import (
	"encoding/hex"
	"time"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/directory"
)

// Agent connects a cluster, or a part of one, to Lockstep.
type Agent struct {
	ID             int64
	ProjectID      int64
	Name           string
	CurvePublicKey string
	CreatedAt      time.Time
	LastSeenAt     time.Time
	ClusterUID     string
	// ClockOffset is how far the agent's clock was ahead at its last tick; negative if it was behind.
	ClockOffset time.Duration
	// Objects is the number of stored objects, at most MaxObjects and one for each of its workspaces.
	Objects int64
	Revoked bool
	// TokenHash is the SHA-256 of the agent's token.
	TokenHash []byte
	// PreviousTokenHash is that of the token before a rotation, which ends at PreviousTokenValidUntil; empty without one.
	PreviousTokenHash       []byte
	PreviousTokenValidUntil time.Time
	// ConfigurationRevision grows with every change of Configuration.
	Configuration         Configuration
	ConfigurationRevision int64
	// OwnSettings are the names of the settings that the agent does not take from the cell.
	OwnSettings []string
}

// Block is a time for which an agent that exceeded a limit may not connect.
type Block struct {
	// Reason names the limit.
	Reason    string
	At, Until time.Time
}

// Event is the payload that reports the block.
func (b Block) Event(agentID int64) events.AgentBlocked {
	return events.AgentBlocked{AgentID: int(agentID), Reason: b.Reason, BlockedAt: b.At, BlockedUntil: b.Until}
}

// EntryVersion is the version of the agent's directory entry. Version 0 has no token_hash, version 1 no name. Raise it
// when the entries of existing agents must be published again with more fields.
const EntryVersion = 2

// Entry returns the directory entry of the agent.
func (a Agent) Entry() directory.Entry {
	entry := events.DirectoryAgent{
		AgentID: int(a.ID), ProjectID: int(a.ProjectID), Name: a.Name, CurvePublicKey: a.CurvePublicKey,
		TokenHash: hex.EncodeToString(a.TokenHash), PreviousTokenHash: hex.EncodeToString(a.PreviousTokenHash),
		Revoked: a.Revoked,
	}
	if len(a.PreviousTokenHash) > 0 {
		entry.PreviousTokenValidUntil = &a.PreviousTokenValidUntil
	}
	return directory.Entry{Kind: "agent", Key: directory.Key(a.ID), Data: entry}
}

// ConfigEvent is the payload that configures the agent's programs.
func (a Agent) ConfigEvent() events.AgentConfig {
	c := a.Configuration
	config := events.AgentConfig{
		ConfigRevision:       int(a.ConfigurationRevision),
		FullResyncIntervalMs: int(c.FullResyncInterval.Milliseconds()),
		UnschedulablePatienceMs: int(
			c.UnschedulablePatience.Milliseconds(),
		),
		StopPatienceMs: int(c.StopPatience.Milliseconds()),
	}
	for _, t := range c.RelayTargets {
		config.RelayTargets = append(config.RelayTargets, events.RelayTarget{Name: t.Name, Address: t.Address})
	}
	return config
}

// Resync is one full resync: the list of all objects of a cluster.
type Resync struct {
	ID string
	// Cause explains why the watcher began it. Nonce identifies the request; empty without one.
	Cause, Nonce string
	// Outcome is open until the resync is judged, then complete or incomplete.
	Outcome string
	// Count of its objects.
	Count int64
	// EndedAt is zero while the resync is open.
	BegunAt, EndedAt time.Time
}
