package directory

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/topology"
)

// Config of a copy.
type Config struct {
	// Conn is the connection to NATS, which comes back by itself. Its user may read the stream: see
	// natsauth.ReadDirectory. Required.
	Conn *nats.Conn
	// Cell whose directory it is. Required.
	Cell topology.Cell
	// Logger. Required.
	Logger *slog.Logger
	// Probe is how often the copy looks whether the stream is still the one that it reads. Defaults
	// to 10 s.
	Probe time.Duration
	// StaleAfter is how long the copy may go without the stream before [Directory.Check] says so.
	// Defaults to 30 s.
	StaleAfter time.Duration
}

const (
	defaultProbe      = 10 * time.Second
	defaultStaleAfter = 30 * time.Second
)

// ErrInvalidConfig is wrapped by errors about a configuration that cannot work.
var ErrInvalidConfig = errors.New("invalid directory configuration")

// Directory is the copy. Its questions may be asked from any goroutine, before it is ready too: it
// then knows nobody.
type Directory struct {
	cfg Config

	mu      sync.RWMutex
	known   *knowledge
	changed chan struct{} // closed with the next change
	ready   bool
	trouble error     // why the stream is not being read; nil while it is
	since   time.Time // of the trouble
}

// New makes a copy that knows nothing until [Directory.Run] runs.
func New(cfg Config) (*Directory, error) {
	switch {
	case cfg.Conn == nil:
		return nil, fmt.Errorf("%w: no NATS connection", ErrInvalidConfig)
	case cfg.Logger == nil:
		return nil, fmt.Errorf("%w: no logger", ErrInvalidConfig)
	case cfg.Probe < 0 || cfg.StaleAfter < 0:
		return nil, fmt.Errorf("%w: a negative time", ErrInvalidConfig)
	}
	if err := topology.ValidateCell(string(cfg.Cell)); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidConfig, err)
	}
	if cfg.Probe == 0 {
		cfg.Probe = defaultProbe
	}
	if cfg.StaleAfter == 0 {
		cfg.StaleAfter = defaultStaleAfter
	}
	return &Directory{cfg: cfg, known: newKnowledge(), changed: make(chan struct{}), since: time.Now()}, nil
}

// Ready says whether the copy has caught up with the stream once.
func (d *Directory) Ready() bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.ready
}

// Following says whether the copy has caught up with the stream and is being kept up, as far as is
// known: what it does not know then is not there, or was told just now.
func (d *Directory) Following() bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.ready && d.trouble == nil
}

// Changed is closed with the next change of anything. Ask for it before the question whose answer
// may change.
func (d *Directory) Changed() <-chan struct{} {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.changed
}

// User returns the user, and false for one that there is not.
func (d *Directory) User(id int64) (User, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	user, found := d.known.users[id]
	return user, found
}

// Agent returns the agent, and false for one that there is not.
func (d *Directory) Agent(id int64) (Agent, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	agent, found := d.known.agents[id]
	return agent, found
}

// Project says whether there is a project of this id.
func (d *Directory) Project(id int64) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	_, found := d.known.projects[id]
	return found
}

// Key returns the key that tokens name so, and false for one that there is not.
func (d *Directory) Key(id string) (Key, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	key, found := d.known.keys[id]
	return key, found
}

// Role is the user's highest role in the scope, its own or inherited from group or organization. A
// user who is an administrator has none by that: ask [Directory.User].
func (d *Directory) Role(userID int64, scope Scope) Role {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.known.role(userID, scope)
}

// AgentRole is the user's highest role in the project of the agent, revoked agents included: what
// they have told is still there.
func (d *Directory) AgentRole(userID, agentID int64) Role {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.known.agentRole(userID, agentID)
}

// Agents lists by id the agents in whose projects the user has at least this role.
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
