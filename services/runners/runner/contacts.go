package runner

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/schemas/gen/errcode"
)

const (
	// changedInfoEvery is the time between two writes because a manager reports something else about itself.
	changedInfoEvery = time.Minute
	// contactWrittenAfter and contactJitter are the default times of [Config.ContactEvery].
	contactWrittenAfter = 40 * time.Minute
	contactJitter       = 15 * time.Minute
)

func contactEvery() time.Duration {
	return contactWrittenAfter + rand.N(contactJitter) //nolint:gosec // jitter is not a secret
}

// contacts remembers the managers that contacted this replica, and what is stored of them. It is safe for concurrent
// use.
type contacts struct {
	cfg Config

	mu      sync.Mutex
	runners map[int64]map[string]*contact // by runner and system id
}

// contact is the last contact of a manager.
type contact struct {
	managerID int64
	info      Info
	address   string
	seenAt    time.Time
	// writtenAt is when the store was written last, writeAt when it is written at the latest.
	writtenAt, writeAt time.Time
}

func newContacts(cfg Config) *contacts {
	return &contacts{cfg: cfg, runners: map[int64]map[string]*contact{}}
}

// Manager records a contact of a process of the runner and returns its id. It writes the first contact, one every
// [Config.ContactEvery], and what the manager reports about itself if that changes, at most once a minute. Empty texts
// keep what is known. A runner that was deleted is the fault permission_denied.
func (r *Registry) Manager(
	ctx context.Context, runnerID int64, systemID string, info Info, address string,
) (int64, error) {
	return r.contacts.record(ctx, Contact{
		RunnerID: runnerID, SystemID: systemID, Info: info, Address: address,
		At: r.cfg.Now().UTC().Truncate(time.Millisecond),
	})
}

// LastContact returns the last contact of a runner with this replica; the zero time if there was none. It may be later
// than what is stored.
func (r *Registry) LastContact(runnerID int64) time.Time {
	r.contacts.mu.Lock()
	defer r.contacts.mu.Unlock()
	var last time.Time
	for _, c := range r.contacts.runners[runnerID] {
		if c.seenAt.After(last) {
			last = c.seenAt
		}
	}
	return last
}

// ForgetManager makes the next contact of the manager the first one, since it was deleted.
func (r *Registry) ForgetManager(runnerID int64, systemID string) {
	r.contacts.mu.Lock()
	defer r.contacts.mu.Unlock()
	delete(r.contacts.runners[runnerID], systemID)
}

func (c *contacts) record(ctx context.Context, now Contact) (int64, error) {
	known, write := c.see(&now)
	if !write {
		return known, nil
	}
	id, err := c.cfg.Store.StoreContact(ctx, now, c.cfg.MaxManagers)
	switch {
	case err == nil:
		c.written(now, id)
		return id, nil
	case errors.Is(err, ErrNoRunner):
		c.forget(now.RunnerID)
		// The next request finds out whether the runner was deleted or moved with its organization.
		return 0, fault.Wrap(err, errcode.Unavailable, "runner %d is not here any more: try again", now.RunnerID)
	case known != 0:
		// The time of a contact is for people only: the request goes on, and a later one writes it.
		c.cfg.Logger.WarnContext(ctx, "storing the contact of a runner failed", logkey.Error(err),
			slog.Int64(logkey.RunnerID, now.RunnerID))
		return known, nil
	default:
		return 0, err
	}
}

// see records the contact in memory. It returns the known id of the manager, 0 for none, and whether to write the
// contact. It completes the contact with what is known.
func (c *contacts) see(now *Contact) (managerID int64, write bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.runners[now.RunnerID][now.SystemID]
	if known == nil {
		return 0, true
	}
	known.seenAt = now.At
	now.Info, now.Address = now.Info.or(known.info), cmp.Or(now.Address, known.address)
	changed := now.Info != known.info || now.Address != known.address
	writeAt := known.writeAt
	if early := known.writtenAt.Add(changedInfoEvery); changed && early.Before(writeAt) {
		writeAt = early
	}
	if now.At.Before(writeAt) {
		return known.managerID, false
	}
	// Other requests of the manager do not write it, too. If this one fails, one writes it in a minute.
	known.writtenAt, known.writeAt = now.At, now.At.Add(changedInfoEvery)
	return known.managerID, true
}

func (c *contacts) written(now Contact, managerID int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	managers := c.runners[now.RunnerID]
	if managers == nil {
		managers = map[string]*contact{}
		c.runners[now.RunnerID] = managers
	}
	if _, exists := managers[now.SystemID]; !exists && len(managers) >= c.cfg.MaxManagers {
		delete(managers, oldest(managers))
	}
	managers[now.SystemID] = &contact{
		managerID: managerID, info: now.Info, address: now.Address, seenAt: now.At, writtenAt: now.At,
		writeAt: now.At.Add(c.cfg.ContactEvery()),
	}
}

// oldest returns the manager with the oldest contact.
func oldest(managers map[string]*contact) string {
	var oldest string
	var at time.Time
	for systemID, c := range managers {
		if at.IsZero() || c.seenAt.Before(at) {
			oldest, at = systemID, c.seenAt
		}
	}
	return oldest
}

func (c *contacts) forget(runnerID int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.runners, runnerID)
}

// or returns the info with the texts of another one where it has none.
func (i Info) or(other Info) Info {
	return Info{
		Version: cmp.Or(i.Version, other.Version), Revision: cmp.Or(i.Revision, other.Revision),
		Platform: cmp.Or(i.Platform, other.Platform), Architecture: cmp.Or(i.Architecture, other.Architecture),
		Executor: cmp.Or(i.Executor, other.Executor),
	}
}
