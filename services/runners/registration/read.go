package registration

import (
	"context"
	"slices"
	"time"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/directory"
	"lockstep.internal/services/runners/runner"
)

// Get returns a runner that the caller may see.
func (s *Service) Get(ctx context.Context, caller access.Caller, id int64) (runner.Runner, error) {
	r, err := s.cfg.Store.Read(ctx, id)
	if err != nil {
		return runner.Runner{}, err
	}
	if err := s.maySee(caller, &r); err != nil {
		return runner.Runner{}, err
	}
	return r, nil
}

// Filter selects runners. Zero values select all.
type Filter struct {
	Type runner.Type
	// GroupID selects the runners of a group, ProjectID those that may take jobs of a project.
	GroupID, ProjectID int64
	// Tags that the runners have.
	Tags []string
	// AfterID begins a page: runners with higher ids. Limit is the size of the page; required.
	AfterID int64
	Limit   int
}

// List returns a page of the runners that the caller may see, by id, and whether there are more. It reads the memory of
// the replica: a change by another replica may be missing for a moment.
func (s *Service) List(caller access.Caller, filter Filter) (page []runner.Runner, more bool) {
	place := s.place(filter.ProjectID)
	all := s.cfg.Registry.All()
	start, _ := slices.BinarySearchFunc(all, filter.AfterID+1, func(r *runner.Runner, id int64) int {
		return int(min(1, max(-1, r.ID-id)))
	})
	for _, r := range all[start:] {
		if !filter.selects(r, place) || !s.sees(caller, r) {
			continue
		}
		if len(page) >= filter.Limit {
			return page, true
		}
		page = append(page, *r)
	}
	return page, false
}

func (f Filter) selects(r *runner.Runner, place runner.Place) bool {
	for _, tag := range f.Tags {
		if !slices.Contains(r.Tags, tag) {
			return false
		}
	}
	return (f.Type == "" || f.Type == r.Type) && (f.GroupID == 0 || f.GroupID == r.GroupID) &&
		(f.ProjectID == 0 || r.TakesProject(f.ProjectID, place))
}

// place returns the place of a project; the zero place if it does not exist.
func (s *Service) place(projectID int64) runner.Place {
	place, _ := Places{s.cfg.Directory}.Place(projectID)
	return place
}

// Places is the directory as package runner asks it.
type Places struct {
	Directory interface {
		Place(scope directory.Scope) (directory.Place, bool)
	}
}

// Place implements [runner.Places].
func (p Places) Place(projectID int64) (runner.Place, bool) {
	place, found := p.Directory.Place(projectScope(projectID))
	return runner.Place(place), found
}

// Managers returns the managers of a runner that the caller manages: they have addresses.
func (s *Service) Managers(ctx context.Context, caller access.Caller, id int64) ([]runner.Manager, error) {
	if _, err := s.managed(ctx, caller, id); err != nil {
		return nil, err
	}
	return s.cfg.Store.Managers(ctx, id)
}

// LastContacts returns the last contact of each of these runners that had one. Those of other replicas may be missing
// for as long as they are not stored.
func (s *Service) LastContacts(ctx context.Context, runnerIDs ...int64) (map[int64]time.Time, error) {
	contacts, err := s.cfg.Store.LastContacts(ctx, runnerIDs...)
	if err != nil {
		return nil, err
	}
	for _, id := range runnerIDs {
		if last := s.cfg.Registry.LastContact(id); last.After(contacts[id]) {
			contacts[id] = last
		}
	}
	return contacts, nil
}
