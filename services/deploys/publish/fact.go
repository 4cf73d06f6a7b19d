package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/rollout"
)

// Dropped is the position of a fact that the stream dropped by its limits. It is never republished.
const Dropped = -1

// Fact is a fact of a workload or an environment.
type Fact struct {
	events.DeployFact

	// WorkloadID of the workload or environment.
	WorkloadID uuid.UUID
	// TraceParent of the observation that caused the fact; empty for none.
	TraceParent string
	// Position on the stream: 0 while unknown, or [Dropped].
	Position int64
	// Known reports that an earlier batch has stored the fact in the database.
	Known bool

	// encoded is the fact in JSON; nil before the first [Fact.Encode] and after a change.
	encoded []byte
}

// Encode returns the fact in JSON.
func (f *Fact) Encode() ([]byte, error) {
	if f.encoded != nil {
		return f.encoded, nil
	}
	var err error
	if f.encoded, err = json.Marshal(&f.DeployFact); err != nil {
		return nil, fmt.Errorf("encode fact %s: %w", f.ID(), err)
	}
	return f.encoded, nil
}

// ID returns the id of the fact, equal for equal facts.
func (f *Fact) ID() string { return rollout.ID(f.DeployFact) }

// Published is a message of the stream.
type Published struct {
	events.DeployFact

	// ID is empty and the fact zero for a message that is not a fact.
	ID       string
	Position int64
}

// matches reports whether p is the fact f. The sequence numbers may differ.
func (f *Fact) matches(p *Published) bool {
	if p.ID == f.ID() {
		return true
	}
	return f.Fact == p.Fact && f.Ordinal == p.Ordinal && f.ObservedAt.Equal(p.ObservedAt) &&
		f.OccurredAt.Equal(p.OccurredAt) && rolloutID(&f.DeployFact) == rolloutID(&p.DeployFact)
}

func rolloutID(f *events.DeployFact) string {
	if f.Rollout == nil {
		return ""
	}
	return f.Rollout.ID
}

// ErrConflict reports that the newest message about a workload is not the expected one.
var ErrConflict = errors.New("the newest message about the workload is not the expected one")

// Ack waits until the stream has stored a fact, and returns its position. It returns [ErrConflict] if the stream
// refused the fact.
type Ack func(ctx context.Context) (int64, error)

// Stream is the port to the stream DEPLOYS.
type Stream interface {
	// Publish sends a fact under the condition that the newest message about its workload is at the expected position.
	Publish(f *Fact, expected int64) (Ack, error)
	// After returns the messages about a workload after a position, oldest first.
	After(ctx context.Context, w events.Workload, position int64) ([]Published, error)
	// Newest returns the newest message about a workload; the zero value if there is none.
	Newest(ctx context.Context, w events.Workload) (Published, error)
	// At returns the message at a position; the zero value if there is none.
	At(ctx context.Context, position int64) (Published, error)
	// FirstPosition returns the position of the oldest message.
	FirstPosition(ctx context.Context) (int64, error)
	// MaxAge returns how long the stream keeps messages.
	MaxAge() time.Duration
}

// Facts is the port to the stored facts.
type Facts interface {
	// Between returns the facts of a workload with above < sequence < below that were recorded within maxAge; 0 for any
	// age. They are ordered by sequence.
	Between(ctx context.Context, workload uuid.UUID, above, below int64, maxAge time.Duration) ([]Fact, error)
}
