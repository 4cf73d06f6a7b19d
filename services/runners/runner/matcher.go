package runner

import "time"

// Places tells where projects are. ok is false for a project that does not exist.
type Places interface {
	Place(projectID int64) (place Place, ok bool)
}

// Matcher tells which jobs a runner takes now, as the queue of jobs asks it.
type Matcher struct {
	Runner *Runner
	Places Places
	Now    time.Time
}

// RunnerID returns the id of the runner.
func (m Matcher) RunnerID() int64 { return m.Runner.ID }

// TakesClass reports whether the runner may take jobs with these tags and this protection.
func (m Matcher) TakesClass(tags []string, protected bool) bool {
	return m.Runner.TakesClass(tags, protected, m.Now)
}

// TakesProject reports whether the project is in the scope of the runner. It looks the project up only for types that
// depend on its place.
func (m Matcher) TakesProject(projectID int64) bool {
	var place Place
	if m.Runner.Type != InstanceType {
		place, _ = m.Places.Place(projectID) // a project that does not exist is in no group and no organization
	}
	return m.Runner.TakesProject(projectID, place)
}
