package filter

import (
	"slices"

	"lockstep.internal/services/watcher/object"
)

// Filter decides which versions of one scope are published. It is not safe for concurrent use.
type Filter interface {
	// Filter returns the versions to publish because of an observed version: itself, others that waited
	// for it, or none.
	Filter(v object.Version) []object.Version
	// FilterLists removes unreported objects from the lists of a full resync; the rest are its members. It returns
	// the versions that remove objects reported before: unselected deletions and [object.Unreported].
	FilterLists(lists []object.List) []object.Version
}

// Workspaces is the filter of workspaces. It removes objects that belong to no Deployment, although
// they have the agent's label. An object that lost its Deployment is missing from the next full
// resync.
type Workspaces struct{}

// Filter implements [Filter].
func (Workspaces) Filter(v object.Version) []object.Version {
	if !inDeployment(v.Object) {
		return nil
	}
	return []object.Version{v}
}

// FilterLists implements [Filter].
func (Workspaces) FilterLists(lists []object.List) []object.Version {
	for i := range lists {
		lists[i].Objects = slices.DeleteFunc(lists[i].Objects, func(o object.Object) bool { return !inDeployment(o) })
	}
	return nil
}

func inDeployment(o object.Object) bool {
	e, is := o.(*object.Encoded)
	return is && e.Deployment() != ""
}
