package directory

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/lastvalue"
	"lockstep.internal/libs/topology"
)

// Config of a copy.
type Config struct {
	// JetStream has a connection that reconnects for ever. Its user may read the stream without consumers, as package
	// lastvalue does. Required.
	JetStream jetstream.JetStream
	// Cell of the directory. Required.
	Cell topology.Cell
	// Logger. Required.
	Logger *slog.Logger
	// Probe is the time between two checks of the stream. Defaults to 5 s.
	Probe time.Duration
	// StaleAfter is the time without the stream after which [Directory.Check] reports it. Defaults
	// to 30 s.
	StaleAfter time.Duration
}

// ErrInvalidConfig is wrapped by errors about a configuration that cannot work.
var ErrInvalidConfig = errors.New("invalid directory configuration")

// Directory is the copy. It is safe for concurrent use. It is empty before it is ready.
type Directory struct {
	cfg    Config
	reader *lastvalue.Reader
	// ready is closed when the copy was loaded once.
	ready     chan struct{}
	readyOnce sync.Once

	mu      sync.RWMutex
	known   *entries
	changed chan struct{} // closed with the next change
}

// New returns an empty copy. [Directory.Run] fills it.
func New(cfg Config) (*Directory, error) {
	switch {
	case cfg.JetStream == nil:
		return nil, fmt.Errorf("%w: no JetStream", ErrInvalidConfig)
	case cfg.Logger == nil:
		return nil, fmt.Errorf("%w: no logger", ErrInvalidConfig)
	case cfg.Probe < 0 || cfg.StaleAfter < 0:
		return nil, fmt.Errorf("%w: a negative time", ErrInvalidConfig)
	}
	if err := topology.ValidateCell(string(cfg.Cell)); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidConfig, err)
	}
	d := &Directory{cfg: cfg, known: newEntries(), changed: make(chan struct{}), ready: make(chan struct{})}
	d.reader = lastvalue.NewReader(lastvalue.Config{
		JetStream: cfg.JetStream, Stream: topology.StreamDirectory, Subjects: cfg.Cell.All(topology.FamilyDirectory),
		Live: cfg.Cell.All(topology.FamilyDirectoryLive), Handler: &loader{Directory: d}, Logger: cfg.Logger,
		Probe: cfg.Probe, StaleAfter: cfg.StaleAfter,
	})
	return d, nil
}

// Changed returns a channel that is closed by the next change. Get it before the query whose result
// may change.
func (d *Directory) Changed() <-chan struct{} {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.changed
}

// User returns the user, and false when it does not exist.
func (d *Directory) User(id int64) (User, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	user, found := d.known.users[id]
	return user, found
}

// UserByName returns the user with a username, and false when it does not exist. It looks at every user.
func (d *Directory) UserByName(name string) (User, bool) {
	hash := HashUsername(name)
	d.mu.RLock()
	defer d.mu.RUnlock()
	for _, user := range d.known.users {
		if user.UsernameHash == hash {
			return user, true
		}
	}
	return User{}, false
}

// Agent returns the agent, and false when it does not exist.
func (d *Directory) Agent(id int64) (Agent, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	agent, found := d.known.agents[id]
	return agent, found
}

// Project reports whether the project exists.
func (d *Directory) Project(id int64) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	_, found := d.known.projects[id]
	return found
}

// Key returns the signing key with this id, and false when it does not exist.
func (d *Directory) Key(id string) (Key, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	key, found := d.known.keys[id]
	return key, found
}

// Role returns the user's highest role in the scope, direct or inherited from its group or
// organization. Administrators need no role: see [Directory.User].
func (d *Directory) Role(userID int64, scope Scope) Role {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.known.role(userID, scope)
}

// Memberships returns the direct roles of a user, in the order of kinds and ids. They count only while the user is not
// blocked.
func (d *Directory) Memberships(userID int64) []Membership {
	d.mu.RLock()
	defer d.mu.RUnlock()
	var out []Membership
	for scope, role := range d.known.memberships[userID] {
		out = append(out, Membership{Scope: scope, Role: role})
	}
	slices.SortFunc(out, func(a, b Membership) int {
		return cmp.Or(cmp.Compare(a.Scope.Kind, b.Scope.Kind), cmp.Compare(a.Scope.ID, b.Scope.ID))
	})
	return out
}

// Place returns the position of a group or a project, and false when it or one of its ancestors does not exist.
func (d *Directory) Place(scope Scope) (Place, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.known.place(scope)
}

// AgentRole returns the user's highest role in the agent's project. It includes revoked agents,
// because their data still exists.
func (d *Directory) AgentRole(userID, agentID int64) Role {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.known.agentRole(userID, agentID)
}

// Agents returns the ids of the agents in whose projects the user has at least this role.
func (d *Directory) Agents(userID int64, least Role) []int64 {
	d.mu.RLock()
	defer d.mu.RUnlock()
	found := []int64{}
	for id := range d.known.agents {
		if Includes(d.known.agentRole(userID, id), least) {
			found = append(found, id)
		}
	}
	slices.Sort(found)
	return found
}
