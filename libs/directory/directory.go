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
	// Conn is a connection to NATS that reconnects for ever. Its user may read the stream: see
	// natsauth.DirectoryReaderSubjects. Required.
	Conn *nats.Conn
	// Cell of the directory. Required.
	Cell topology.Cell
	// Logger. Required.
	Logger *slog.Logger
	// Probe is the time between two checks that the stream is still the same. Defaults to 10 s.
	Probe time.Duration
	// StaleAfter is the time without the stream after which [Directory.Check] reports it. Defaults
	// to 30 s.
	StaleAfter time.Duration
}

const (
	defaultProbe      = 10 * time.Second
	defaultStaleAfter = 30 * time.Second
)

// ErrInvalidConfig is wrapped by errors about a configuration that cannot work.
var ErrInvalidConfig = errors.New("invalid directory configuration")

// Directory is the copy. It is safe for concurrent use. It is empty before it is ready.
type Directory struct {
	cfg Config

	mu      sync.RWMutex
	known   *entries
	changed chan struct{} // closed with the next change
	ready   bool
	readErr error     // the error that stops the reading, or nil
	since   time.Time // the time of readErr
}

// New returns an empty copy. [Directory.Run] fills it.
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
	return &Directory{cfg: cfg, known: newEntries(), changed: make(chan struct{}), since: time.Now()}, nil
}

// Ready reports whether the copy has read the stream to its end once.
func (d *Directory) Ready() bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.ready
}

// UpToDate reports whether the copy is ready and reads the stream without errors. Then a missing entry does not
// exist or was created just now.
func (d *Directory) UpToDate() bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.ready && d.readErr == nil
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
