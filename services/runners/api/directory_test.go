package api_test

import (
	"sync"

	"lockstep.internal/libs/directory"
)

// Users of the tests, by their role in project 4. Everybody else has none; project 5 is the administrator's.
const (
	admin, maintainer, developer, reader, stranger, blocked = 1, 2, 3, 4, 5, 6
	projectID, otherProject                                 = 4, 5
)

// fakeDirectory is a directory in memory.
type fakeDirectory struct {
	key directory.Key

	mu      sync.Mutex
	users   map[int64]directory.User
	roles   map[int64]directory.Role
	changed chan struct{}
}

func newDirectory(key directory.Key) *fakeDirectory {
	return &fakeDirectory{
		key: key, changed: make(chan struct{}),
		users: map[int64]directory.User{
			admin: {ID: admin, Admin: true}, maintainer: {ID: maintainer}, developer: {ID: developer}, reader: {ID: reader},
			stranger: {ID: stranger}, blocked: {ID: blocked, Blocked: true},
		},
		roles: map[int64]directory.Role{
			maintainer: directory.RoleMaintainer, developer: directory.RoleDeveloper, reader: directory.RoleReader,
			blocked: directory.RoleOwner,
		},
	}
}

func (*fakeDirectory) Ready() bool { return true }

func (d *fakeDirectory) Changed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changed
}

func (d *fakeDirectory) User(id int64) (directory.User, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	u, known := d.users[id]
	return u, known
}

func (d *fakeDirectory) Key(id string) (directory.Key, bool) { return d.key, id == d.key.ID }

func (d *fakeDirectory) Role(userID int64, scope directory.Scope) directory.Role {
	d.mu.Lock()
	defer d.mu.Unlock()
	if scope != (directory.Scope{Kind: directory.Project, ID: projectID}) {
		return directory.RoleNone
	}
	return d.roles[userID]
}

func (*fakeDirectory) Place(scope directory.Scope) (directory.Place, bool) {
	known := scope.Kind == directory.Project && (scope.ID == projectID || scope.ID == otherProject)
	return directory.Place{Groups: []int64{3, 2}, Organization: 1}, known
}

func (d *fakeDirectory) write(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
	close(d.changed)
	d.changed = make(chan struct{})
}
