package postgres

import (
	"time"

	"github.com/google/uuid"
)

// Record is what is stored of a workload or an environment.
type Record struct {
	// ID is a digest of its key.
	ID         uuid.UUID
	ClusterUID string
	// AgentID of the agent that told of it last.
	AgentID int64
	// Present says that a workload is there and followed; it is not kept of environments.
	Present bool
	// WakeAt is when a tick matters; zero for never.
	WakeAt time.Time
	// State of the pure core as JSON.
	State string
	// Told is the position on the stream DEPLOYS of the last fact of it; 0 where it is not known.
	Told int64
}

// Member is an object of a full resync that is open.
type Member struct {
	AgentID int64
	Object  string
	// Workload that the object is; zero for others.
	Workload uuid.UUID
}

// Fact is a fact as it is stored.
type Fact struct {
	ID         string
	Workload   uuid.UUID
	Sequence   int64
	Fact       string
	RolloutID  string
	OccurredAt time.Time
	ObservedAt time.Time
	// Data is the fact as JSON.
	Data string
	// StreamSequence is its position on the stream DEPLOYS: 0 while that is not known, TooOld when it is not to be told again.
	StreamSequence int64
}

// TooOld is the position of facts that the stream has dropped.
const TooOld = -1
