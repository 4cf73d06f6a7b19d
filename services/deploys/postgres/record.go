package postgres

import (
	"time"

	"github.com/google/uuid"
)

// Fact is a row of the table facts.
type Fact struct {
	ID         string
	Workload   uuid.UUID
	Sequence   int64
	Fact       string
	RolloutID  string
	OccurredAt time.Time
	ObservedAt time.Time
	// Data is the fact in JSON.
	Data string
	// StreamSequence is the position on the stream DEPLOYS: 0 while unknown, or [publish.Dropped].
	StreamSequence int64
}
