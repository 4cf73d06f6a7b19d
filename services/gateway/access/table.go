package access

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
)

// Entry is a workspace as far as people's way in is concerned.
type Entry struct {
	ID        string
	Name      string
	Namespace string
	AgentID   int64
	OwnerID   int64
	Shares    []Share
	// Running is true while the workspace can be reached.
	Running bool
	// CountsProcesses is true if programs that people have started keep it alive while they work.
	CountsProcesses bool
	// State is its actual state, for people: running, stopped, starting …
	State string
}

// People are the owner and those it is shared with.
func (e Entry) People() []int64 {
	people := []int64{e.OwnerID}
	for _, s := range e.Shares {
		people = append(people, s.UserID)
	}
	return people
}

// Share lets another person in.
type Share struct {
	UserID int64
	// Port that the person may open; 0 for everything, SSH included.
	Port int
}

// SSH is the port that stands for SSH in Enter: only who may do everything may have a shell.
const SSH = 0

// Errors of Enter.
var (
	// ErrUnknown is returned for a workspace that does not exist and for one that the person may not enter: nobody learns
	// names by guessing.
	ErrUnknown = errors.New("there is no such workspace, or you may not enter it")
	// ErrNotRunning is returned to those who may enter as soon as it runs.
	ErrNotRunning = errors.New("the workspace is not running")
)

// Reasons why a grant has ended.
var (
	ErrRevoked = errors.New("the access to the workspace was revoked")
	ErrStopped = errors.New("the workspace has stopped")
)

// Grant is a right that somebody uses. Close it when it is no longer used.
type Grant struct {
	Entry  Entry
	UserID int64
	Port   int

	table *Table
	ctx   context.Context //nolint:containedctx // it is that of the right, not of a call
	end   context.CancelCauseFunc
}

// Context ends with the right. Its cause is why.
func (g *Grant) Context() context.Context { return g.ctx }

// Close ends the use.
func (g *Grant) Close() {
	g.table.mu.Lock()
	defer g.table.mu.Unlock()
	if w, ok := g.table.byID[g.Entry.ID]; ok {
		delete(w.grants, g)
	}
}

// Table is safe for concurrent use. Create it with New.
type Table struct {
	mu      sync.Mutex
	byID    map[string]*workspace
	byName  map[string]*workspace // the newest of a name
	blocked map[int64]bool
}

type workspace struct {
	Entry

	grants  map[*Grant]struct{}
	changed chan struct{} // closed when Entry changes
}

// New returns an empty table.
func New() *Table {
	return &Table{byID: map[string]*workspace{}, byName: map[string]*workspace{}, blocked: map[int64]bool{}}
}

// Enter lets a person in, or says why not. A person without an id has not signed in and enters nothing.
func (t *Table) Enter(userID int64, name string, port int) (*Grant, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w, ok := t.byName[name]
	if !ok || !t.may(w, userID, port) {
		return nil, ErrUnknown
	}
	g := &Grant{Entry: w.Entry, UserID: userID, Port: port, table: t}
	g.ctx, g.end = context.WithCancelCause(context.Background())
	if !w.Running {
		return g, ErrNotRunning
	}
	w.grants[g] = struct{}{}
	return g, nil
}

// Watch returns a workspace that a person may enter, running or not, and a channel that is closed when it changes.
func (t *Table) Watch(userID int64, name string, port int) (Entry, <-chan struct{}, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w, ok := t.byName[name]
	if !ok || !t.may(w, userID, port) {
		return Entry{}, nil, ErrUnknown
	}
	return w.Entry, w.changed, nil
}

// may decides. The owner may do everything.
func (t *Table) may(w *workspace, userID int64, port int) bool {
	if userID == 0 || t.blocked[userID] {
		return false
	}
	return w.OwnerID == userID || slices.ContainsFunc(w.Shares, func(s Share) bool {
		return s.UserID == userID && (s.Port == 0 || s.Port == port && port != SSH)
	})
}

// Set adds or replaces a workspace. Grants that it no longer allows end.
func (t *Table) Set(e Entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w, ok := t.byID[e.ID]
	if !ok {
		w = &workspace{grants: map[*Grant]struct{}{}, changed: make(chan struct{})}
		t.byID[e.ID] = w
	}
	if ok && w.Name != e.Name && t.byName[w.Name] == w {
		delete(t.byName, w.Name)
	}
	w.Entry = e
	t.byName[e.Name] = w
	t.check(w)
	close(w.changed)
	w.changed = make(chan struct{})
}

// Remove removes a workspace and ends its grants.
func (t *Table) Remove(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w, ok := t.byID[id]
	if !ok {
		return
	}
	delete(t.byID, id)
	if t.byName[w.Name] == w {
		delete(t.byName, w.Name)
	}
	for g := range w.grants {
		t.end(w, g, ErrStopped)
	}
	close(w.changed)
}

// Find returns a workspace by its id.
func (t *Table) Find(id string) (Entry, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w, found := t.byID[id]
	if !found {
		return Entry{}, false
	}
	return w.Entry, true
}

// CountingProcesses returns the running workspaces with CountsProcesses.
func (t *Table) CountingProcesses() []Entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	var found []Entry
	for _, w := range t.byID {
		if w.Running && w.CountsProcesses {
			found = append(found, w.Entry)
		}
	}
	return found
}

// People are all who may enter a workspace, once each.
func (t *Table) People() []int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	people := map[int64]struct{}{}
	for _, w := range t.byID {
		for _, id := range w.People() {
			people[id] = struct{}{}
		}
	}
	return slices.Collect(maps.Keys(people))
}

// SetBlocked blocks a person, or ends that. All grants of a person who is blocked end.
func (t *Table) SetBlocked(userID int64, blocked bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !blocked {
		delete(t.blocked, userID)
		return
	}
	if t.blocked[userID] {
		return
	}
	t.blocked[userID] = true
	for _, w := range t.byID {
		t.check(w)
	}
}

// check ends the grants of a workspace that are no longer allowed.
func (t *Table) check(w *workspace) {
	for g := range w.grants {
		switch {
		case !t.may(w, g.UserID, g.Port):
			t.end(w, g, ErrRevoked)
		case !w.Running:
			t.end(w, g, ErrStopped)
		}
	}
}

func (t *Table) end(w *workspace, g *Grant, reason error) {
	delete(w.grants, g)
	g.end(reason)
}
