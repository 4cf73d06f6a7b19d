package chain

import (
	"cmp"
	"slices"
)

// Level is where a controller is registered.
type Level string

// The levels.
const (
	LevelProject  Level = "project"
	LevelGroup    Level = "group"
	LevelInstance Level = "instance"
)

// Mode tells whether the decisions of a controller count.
type Mode string

// The modes.
const (
	// Enforced decisions count.
	Enforced Mode = "enforced"
	// DryRun decisions are recorded only.
	DryRun Mode = "dry_run"
	// Disabled controllers are not asked.
	Disabled Mode = "disabled"
)

// FailurePolicy decides about a job whose controller has failed.
type FailurePolicy string

// The policies. The empty policy is Deny.
const (
	Deny   FailurePolicy = "deny"
	Ignore FailurePolicy = "ignore"
)

// DefaultMaxAttempts is how often a controller is asked at most.
const DefaultMaxAttempts = 5

// Controller is a controller of a chain.
type Controller struct {
	ID int64 `json:"id"`
	// Revision is larger after each change.
	Revision int64  `json:"revision"`
	Name     string `json:"name"`
	Level    Level  `json:"level"`
	// OwnerID is the project or group; 0 for the instance.
	OwnerID int64 `json:"owner_id,omitempty"`
	// Position is the order among the controllers of the owner.
	Position int `json:"position,omitempty"`
	// Mutating controllers may change tags and runners. Others are validating.
	Mutating      bool          `json:"mutating,omitempty"`
	Mode          Mode          `json:"mode"`
	FailurePolicy FailurePolicy `json:"failure_policy,omitempty"`
	// MaxAttempts defaults to DefaultMaxAttempts.
	MaxAttempts int `json:"max_attempts,omitempty"`
	// AllVariables sends all variables of the job, else those with these names.
	AllVariables bool     `json:"all_variables,omitempty"`
	Variables    []string `json:"variables,omitempty"`
}

func (c *Controller) maxAttempts() int {
	if c.Mode == DryRun {
		return 1
	}
	return cmp.Or(max(c.MaxAttempts, 0), DefaultMaxAttempts)
}

// Place is where a project is.
type Place struct {
	ProjectID int64
	// GroupIDs are the groups that contain the project, the innermost first.
	GroupIDs []int64
}

// Order returns the controllers that decide about jobs of a project, in the order in which they are asked.
func Order(controllers []Controller, place Place) []Controller {
	distances := map[int]int{}
	for i, c := range controllers {
		switch {
		case c.Level == LevelProject && c.OwnerID == place.ProjectID:
			distances[i] = 0
		case c.Level == LevelGroup && slices.Contains(place.GroupIDs, c.OwnerID):
			distances[i] = 1 + slices.Index(place.GroupIDs, c.OwnerID)
		case c.Level == LevelInstance:
			distances[i] = 1 + len(place.GroupIDs)
		}
	}
	var indexes []int
	for i := range controllers {
		if _, ok := distances[i]; ok {
			indexes = append(indexes, i)
		}
	}
	slices.SortFunc(indexes, func(a, b int) int {
		x, y := &controllers[a], &controllers[b]
		return cmp.Or(cmp.Compare(distances[a], distances[b]), cmp.Compare(x.Position, y.Position),
			cmp.Compare(x.ID, y.ID))
	})
	out := make([]Controller, len(indexes))
	for i, index := range indexes {
		out[i] = controllers[index]
	}
	return out
}
