package admission

import (
	"lockstep.internal/libs/directory"
	"lockstep.internal/services/admission/nats"
	"lockstep.internal/services/admission/policy"
)

// surroundings has the copies of other services' data.
type surroundings struct {
	directory *directory.Directory
	runners   *nats.Runners
}

// Groups implements [decide.Surroundings].
func (s surroundings) Groups(projectID int64) ([]int64, bool) {
	place, found := s.directory.Place(directory.Scope{Kind: directory.Project, ID: projectID})
	return place.Groups, found
}

// GroupsOfUser implements [decide.Surroundings].
func (s surroundings) GroupsOfUser(userID int64) []int64 {
	var ids []int64
	for _, m := range s.directory.Memberships(userID) {
		if m.Scope.Kind == directory.Group {
			ids = append(ids, m.Scope.ID)
		}
	}
	return ids
}

// Runners implements [decide.Surroundings].
func (s surroundings) Runners(projectID int64, protected bool) []policy.Runner {
	groups, _ := s.Groups(projectID)
	found := s.runners.Of(projectID, groups, protected)
	out := make([]policy.Runner, len(found))
	for i, r := range found {
		out[i] = nats.ForPolicy(r)
	}
	return out
}
