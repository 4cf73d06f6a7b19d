package runner

import (
	"slices"
	"time"
)

// Type says whose jobs a runner takes. The values are those of GitLab's API.
type Type string

// The types.
const (
	// InstanceType runners take jobs of the whole cell.
	InstanceType Type = "instance_type"
	// GroupType runners take jobs of one group and of the groups below it.
	GroupType Type = "group_type"
	// ProjectType runners take jobs of the projects that they are linked to.
	ProjectType Type = "project_type"
)

// Types returns all types.
func Types() []Type { return []Type{InstanceType, GroupType, ProjectType} }

// Runner is a runner with one token, which any number of processes share. Times are UTC, with milliseconds; the zero
// time means never.
type Runner struct {
	Settings

	ID   int64
	Type Type
	// OrganizationID of the group or the projects; 0 for runners of the instance.
	OrganizationID int64
	// GroupID of a runner of a group; else 0.
	GroupID int64
	// ProjectIDs of a runner of projects, all of one organization. The first one is the project that owns the runner. It
	// must not be changed.
	ProjectIDs []int64

	// TokenHash is what is stored of the token.
	TokenHash      TokenHash
	TokenExpiresAt time.Time
	// CreatedBy is a user; 0 if a registration token created the runner.
	CreatedBy int64
	CreatedAt time.Time
	// Revision is 1 for a new runner, and one more for each change.
	Revision int64
}

// OwnerProject returns the project that owns a runner of projects, and 0 for other types.
func (r *Runner) OwnerProject() int64 {
	if len(r.ProjectIDs) == 0 {
		return 0
	}
	return r.ProjectIDs[0]
}

// Expired reports whether the token has expired.
func (r *Runner) Expired(now time.Time) bool {
	return !r.TokenExpiresAt.IsZero() && !now.Before(r.TokenExpiresAt)
}

// WithToken returns the runner with another token. The old one is void.
func (r *Runner) WithToken(hash TokenHash, expiresAt time.Time) Runner {
	changed := *r
	changed.TokenHash, changed.TokenExpiresAt = hash, expiresAt
	return changed
}

// WithProject returns the runner linked to one more project.
func (r *Runner) WithProject(id int64) Runner {
	changed := *r
	if !slices.Contains(r.ProjectIDs, id) {
		changed.ProjectIDs = append(slices.Clone(r.ProjectIDs), id)
	}
	return changed
}

// WithoutProject returns the runner without the link to a project.
func (r *Runner) WithoutProject(id int64) Runner {
	changed := *r
	changed.ProjectIDs = slices.DeleteFunc(slices.Clone(r.ProjectIDs), func(other int64) bool { return other == id })
	return changed
}
