package nats

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/lastvalue"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/gateway/access"
)

// People are the part of [directory.Directory] that decides who may enter anything.
type People interface {
	Changed() <-chan struct{}
	User(id int64) (directory.User, bool)
}

// Config of [Workspaces]. All fields are required.
type Config struct {
	// JetStream has a connection that reconnects for ever.
	JetStream jetstream.JetStream
	Cell      topology.Cell
	Table     *access.Table
	// Keys are the SSH keys of people.
	Keys *access.Keys
	// People is loaded before Run is called.
	People People
	// Deleted is called with the id of each workspace that was deleted. It does not wait.
	Deleted func(id string)
	Logger  *slog.Logger
}

// Workspaces reads the stream ACCESS into a table.
type Workspaces struct {
	Config

	reader *lastvalue.Reader

	// The reader's goroutine alone uses these.

	revisions    map[string]int64 // by id of the workspace, also of those that were deleted
	keyRevisions map[string]int64
	// loading and loadingKeys replace all workspaces and all keys when the stream was replaced; nil otherwise.
	loading     map[string]version
	loadingKeys map[string]keyVersion

	people sync.Mutex // held from reading a person until the table has the result and the workspace
}

// version is a workspace as one message has it.
type version struct {
	entry    access.Entry
	deleted  bool
	revision int64
}

// keyVersion is an SSH key as one message has it.
type keyVersion struct {
	key      access.Key
	deleted  bool
	revision int64
}

// New returns a reader of the stream. Run starts it.
func New(c Config) *Workspaces {
	w := &Workspaces{Config: c, revisions: map[string]int64{}, keyRevisions: map[string]int64{}}
	w.reader = lastvalue.NewReader(lastvalue.Config{
		JetStream: c.JetStream, Stream: topology.StreamAccess, Subjects: c.Cell.All(topology.FamilyAccess),
		Live: c.Cell.All(topology.FamilyAccessLive), Handler: (*loader)(w), Logger: c.Logger,
	})
	return w
}

// Run keeps the table up to date until ctx ends. It calls ready once the table is complete.
func (w *Workspaces) Run(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel()
	following.Go(func() { w.followPeople(ctx) })
	w.reader.Run(ctx, ready)
	return nil
}

// Ready reports whether the table was complete once.
func (w *Workspaces) Ready() bool { return w.reader.Ready() }

// Check is a health check.
func (w *Workspaces) Check(ctx context.Context) error { return w.reader.Check(ctx) }

// followPeople ends what people do when they are blocked or deleted.
func (w *Workspaces) followPeople(ctx context.Context) {
	for {
		changed := w.People.Changed()
		w.judgeAll()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

func (w *Workspaces) judgeAll() {
	w.people.Lock()
	defer w.people.Unlock()
	w.judge(w.Table.People())
}

// judge blocks those who may enter nothing. The lock must be held.
func (w *Workspaces) judge(people []int64) {
	for _, id := range people {
		person, known := w.People.User(id)
		w.Table.SetBlocked(id, !known || person.Blocked)
	}
}

// set applies a version to the table.
func (w *Workspaces) set(v version) {
	if v.deleted {
		w.Table.Remove(v.entry.ID)
		w.Deleted(v.entry.ID)
		return
	}
	// People are judged before they may enter. Under the lock, judgeAll either sees the entry, or has not seen anything
	// newer.
	w.people.Lock()
	defer w.people.Unlock()
	w.judge(v.entry.People())
	w.Table.Set(v.entry)
}

// loader receives what the reader reads.
type loader Workspaces

// Begin implements [lastvalue.Handler].
func (l *loader) Begin(replaced bool) {
	l.loading, l.loadingKeys = nil, nil
	if replaced {
		l.loading, l.loadingKeys = map[string]version{}, map[string]keyVersion{}
	}
}

// Apply implements [lastvalue.Handler].
func (l *loader) Apply(ctx context.Context, m lastvalue.Message) {
	if strings.HasPrefix(m.Subject, l.Cell.AccessSSHKeys()) {
		l.applyKey(ctx, m)
		return
	}
	v, err := l.decode(m)
	if err != nil {
		l.Logger.ErrorContext(ctx, "ignored a message about a workspace", logkey.Error(err))
		return
	}
	id := v.entry.ID
	if l.loading != nil {
		l.loading[id] = v
		return
	}
	if known, found := l.revisions[id]; found && known > v.revision {
		return
	}
	l.revisions[id] = v.revision
	(*Workspaces)(l).set(v)
}

// Loaded implements [lastvalue.Handler].
func (l *loader) Loaded() {
	if l.loading == nil {
		return
	}
	for id := range l.revisions {
		if _, exists := l.loading[id]; !exists {
			l.Table.Remove(id)
		}
	}
	clear(l.revisions)
	for id, v := range l.loading {
		l.revisions[id] = v.revision
		(*Workspaces)(l).set(v)
	}
	l.loading = nil
	for fingerprint := range l.keyRevisions {
		if _, exists := l.loadingKeys[fingerprint]; !exists {
			l.Keys.Remove(fingerprint)
		}
	}
	clear(l.keyRevisions)
	for fingerprint, k := range l.loadingKeys {
		l.setKey(fingerprint, k)
	}
	l.loadingKeys = nil
}

func (l *loader) decode(m lastvalue.Message) (version, error) {
	data, err := events.Decode[events.AccessWorkspace](m.Data)
	if err != nil {
		return version{}, fmt.Errorf("decode %s: %w", m.Subject, err)
	}
	if l.Cell.AccessWorkspace(data.WorkspaceID) != m.Subject {
		return version{}, fmt.Errorf("%s is about workspace %s", m.Subject, data.WorkspaceID)
	}
	v := version{
		entry: access.Entry{
			ID: data.WorkspaceID, Name: data.Name, Namespace: data.Namespace, AgentID: int64(data.AgentID),
			OwnerID: int64(data.UserID), Running: data.ActualState == events.ActualStateRunning,
			State: string(data.ActualState), CountsProcesses: data.CountsProcesses,
		},
		deleted: data.Deleted, revision: m.Revision(),
	}
	for _, s := range data.Shares {
		share := access.Share{UserID: int64(s.UserID)}
		if s.Port != nil {
			share.Port = *s.Port
		}
		v.entry.Shares = append(v.entry.Shares, share)
	}
	return v, nil
}

// applyKey applies a message about an SSH key.
func (l *loader) applyKey(ctx context.Context, m lastvalue.Message) {
	data, err := events.Decode[events.AccessSSHKey](m.Data)
	if err == nil && l.Cell.AccessSSHKey(data.Fingerprint) != m.Subject {
		err = fmt.Errorf("%s is about the key %s", m.Subject, data.Fingerprint)
	}
	if err != nil {
		l.Logger.ErrorContext(ctx, "ignored a message about an SSH key", logkey.Error(err))
		return
	}
	key := keyVersion{
		key:     access.Key{UserID: int64(data.UserID)},
		deleted: data.Deleted, revision: m.Revision(),
	}
	if data.ExpiresAt != nil {
		key.key.ExpiresAt = *data.ExpiresAt
	}
	if l.loadingKeys != nil {
		l.loadingKeys[data.Fingerprint] = key
		return
	}
	if known, found := l.keyRevisions[data.Fingerprint]; found && known > key.revision {
		return
	}
	l.setKey(data.Fingerprint, key)
}

func (l *loader) setKey(fingerprint string, k keyVersion) {
	l.keyRevisions[fingerprint] = k.revision
	if k.deleted {
		l.Keys.Remove(fingerprint)
		return
	}
	l.Keys.Set(fingerprint, k.key)
}
