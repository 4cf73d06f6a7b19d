package execution

import (
	"context"
	"time"
)

// ArtifactStore stores which objects artifacts have. Each object is one of an artifact, or unused.
type ArtifactStore interface {
	// Reserve records an object that is about to be stored, as unused.
	Reserve(ctx context.Context, object string, at time.Time) error
	// Find returns an artifact of a job; nil if there is none.
	Find(ctx context.Context, jobID int64, kind string) (*Artifact, error)
	// Named returns those of the objects that an artifact has, or that are recorded as unused.
	Named(ctx context.Context, objects []string) (map[string]bool, error)
	// Expire removes at most limit artifacts that have expired, whose objects are then unused. It returns how many.
	Expire(ctx context.Context, now time.Time, limit int) (int, error)
	// Collect passes at most limit objects that are unused since a time to remove, and forgets those that it removed. It
	// returns how many these are, and the errors of remove. An object is not in use meanwhile.
	Collect(ctx context.Context, before time.Time, limit int, remove func(context.Context, string) error) (int, error)
}
