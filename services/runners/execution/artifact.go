package execution

import "time"

// Artifact is a file of a job. Its content is an object of the store of objects.
type Artifact struct {
	JobID int64
	// Type is archive, or another one of the runner's; there is one of each type.
	Type     string
	Format   string
	Filename string
	// Size in bytes. SHA256 in hexadecimal.
	Size   int64
	SHA256 string
	// Object is the key of the content.
	Object    string
	CreatedAt time.Time
	// ExpiresAt is zero for never.
	ExpiresAt time.Time
}

// Expired reports whether the artifact is not available any more.
func (a Artifact) Expired(now time.Time) bool {
	return !a.ExpiresAt.IsZero() && !now.Before(a.ExpiresAt)
}
