package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/relay/registry"
)

const (
	// bucket of the registry.
	bucket = topology.BucketRelays
	// DefaultLease is the default lease duration.
	DefaultLease = 15 * time.Second
	// refreshes per lease duration.
	refreshes = 3
	// requestTimeout of one request to NATS.
	requestTimeout = 5 * time.Second
	// maxLost connections are published in one batch, so that the lease can be refreshed between batches.
	maxLost = 500
)

// RegistryConfig of a [RegistryStore]. All fields are required, unless they have a default.
type RegistryConfig struct {
	// JetStream of the relays' own account.
	JetStream jetstream.JetStream
	// Replicas of the bucket. Defaults to 1.
	Replicas int
	Self     registry.Relay
	Registry *registry.Registry
	// Lease in whole seconds. Defaults to [DefaultLease].
	Lease time.Duration
	// Events publishes connections and disconnections.
	Events ConnectionEvents
	// OnRemoved is called with each connection that ended: one of this relay at once, one of another relay when it is
	// removed from the registry. It may be called twice.
	OnRemoved func(registry.Connection)
	Logger    *slog.Logger
}

// ConnectionEvents publishes connections and disconnections; an [EventPublisher].
type ConnectionEvents interface {
	Connected(c registry.Connection)
	Disconnected(c registry.Connection, at time.Time, reason events.DisconnectReason)
	// Republish publishes a connection of this relay that others published as lost. It does not block; false means
	// try again later.
	Republish(c registry.Connection) bool
	// PublishLost publishes connections of dead relays, and returns when the events are stored.
	PublishLost(ctx context.Context, lost []registry.Connection) error
}

// RegistryStore keeps the registry's bucket.
type RegistryStore struct {
	cfg  RegistryConfig
	wake chan struct{} // something has to be written

	mu  sync.Mutex
	own *registry.OwnEntries
	// leaseRevision is the revision of this relay's lease. leaseLost reports whether the lease was lost.
	leaseRevision uint64
	leaseLost     bool
	// unregistered: this relay has removed its entries and writes no more.
	unregistered bool

	// Owned by Run: connections of dead relays. unpublished: lost event not published yet. unremoved: published,
	// entry not removed yet.
	unpublished, unremoved map[string]registry.Connection
}

// NewRegistryStore makes a store. [RegistryStore.Run] reads and writes the bucket.
func NewRegistryStore(cfg RegistryConfig) *RegistryStore {
	if cfg.Lease == 0 {
		cfg.Lease = DefaultLease
	}
	return &RegistryStore{
		cfg: cfg, own: registry.NewOwnEntries(), wake: make(chan struct{}, 1),
		unpublished: map[string]registry.Connection{}, unremoved: map[string]registry.Connection{},
	}
}

// SetURL sets where other relays reach this one. It is called before Run.
func (s *RegistryStore) SetURL(url string) { s.cfg.Self.URL = url }

// Connected adds a connection of this relay, and publishes it.
func (s *RegistryStore) Connected(c registry.Connection) {
	c.RelayID = s.cfg.Self.ID
	s.mu.Lock()
	s.own.Add(c)
	s.wakeRun()
	s.mu.Unlock()
	s.cfg.Events.Connected(c)
}

// Disconnected removes a connection of this relay, and publishes that.
func (s *RegistryStore) Disconnected(c registry.Connection, at time.Time, reason events.DisconnectReason) {
	s.mu.Lock()
	if published, held := s.own.Remove(c.Key()); held {
		c = published
	}
	s.wakeRun()
	s.mu.Unlock()
	s.cfg.OnRemoved(c)
	s.cfg.Events.Disconnected(c, at, reason) // it is never republished after that
}

func (s *RegistryStore) wakeRun() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run synchronizes the bucket and the registry until ctx is done, then unregisters this relay; see
// [RegistryStore.Unregister]. It returns errors of NATS, and may then be called again. It calls ready after it has
// read the whole bucket.
func (s *RegistryStore) Run(ctx context.Context, ready func()) error {
	for {
		reconnected, err := s.runUntilReconnect(ctx, ready)
		if ctx.Err() != nil {
			return s.Unregister(context.WithoutCancel(ctx))
		}
		if !reconnected {
			return err
		}
	}
}

// runUntilReconnect synchronizes until the client has reconnected to NATS, an error, or the end of ctx.
func (s *RegistryStore) runUntilReconnect(ctx context.Context, ready func()) (reconnected bool, err error) {
	conn := s.cfg.JetStream.Conn()
	status := conn.StatusChanged(nats.CONNECTED)
	defer conn.RemoveStatusListener(status)
	kv, err := s.open(ctx)
	if err != nil {
		return false, err
	}
	for _, step := range []func(context.Context, jetstream.KeyValue) error{s.refresh, s.reset, s.flush} {
		if err := step(ctx, kv); err != nil {
			return false, err
		}
	}
	watcher, err := kv.WatchAll(ctx)
	if err != nil {
		return false, fmt.Errorf("watch bucket %s: %w", bucket, err)
	}
	defer watcher.Stop() //nolint:errcheck // it is over
	s.cfg.Registry.BeginResync()
	// Wait one lease before stale entries are removed: other relays may still be rewriting theirs.
	cleanup := time.NewTimer(0)
	defer cleanup.Stop()
	cleanup.Stop()
	lease := time.NewTicker(s.cfg.Lease / refreshes)
	defer lease.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return false, context.Cause(ctx) //nolint:wrapcheck // a cause of ours
		case <-status:
			return true, nil
		case entry, open := <-watcher.Updates():
			switch {
			case !open:
				return false, fmt.Errorf("watch bucket %s: the watch has ended", bucket)
			case entry == nil:
				ready()
				cleanup.Reset(s.cfg.Lease)
			default:
				s.handle(ctx, entry)
			}
		case <-lease.C:
			err = s.refresh(ctx, kv)
			s.republish()
		case <-s.wake:
			if err = s.rewriteLostLease(ctx, kv); err == nil {
				err = s.flush(ctx, kv)
			}
		case <-cleanup.C:
			s.endResync()
			var more bool
			more, err = s.removeOrphans(ctx, kv)
			if more {
				cleanup.Reset(0)
			} else {
				cleanup.Reset(s.cfg.Lease)
			}
		}
		if err != nil {
			return false, err
		}
	}
}

// open opens the bucket, and creates it if it is missing: NATS keeps it in memory.
func (s *RegistryStore) open(ctx context.Context) (jetstream.KeyValue, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := topology.EnsureRelays(ctx, s.cfg.JetStream, topology.Options{Replicas: s.cfg.Replicas}); err != nil {
		return nil, fmt.Errorf("create: %w", err)
	}
	kv, err := s.cfg.JetStream.KeyValue(ctx, bucket)
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", bucket, err)
	}
	return kv, nil
}

// refresh writes the lease. It publishes to the bucket's subject: KeyValue.Put does not keep the per-key TTL.
func (s *RegistryStore) refresh(ctx context.Context, _ jetstream.KeyValue) error {
	s.mu.Lock()
	unregistered := s.unregistered
	s.mu.Unlock()
	if unregistered {
		return nil
	}
	value, err := json.Marshal(s.cfg.Self)
	if err != nil {
		return fmt.Errorf("encode the lease: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	subject := "$KV." + bucket + "." + s.cfg.Self.Key()
	ack, err := s.cfg.JetStream.Publish(ctx, subject, value, jetstream.WithMsgTTL(s.cfg.Lease))
	if err != nil {
		return fmt.Errorf("refresh the lease in bucket %s: %w", bucket, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaseRevision = ack.Sequence
	return nil
}

// rewriteLostLease writes the lease if it was lost.
func (s *RegistryStore) rewriteLostLease(ctx context.Context, kv jetstream.KeyValue) error {
	s.mu.Lock()
	leaseLost := s.leaseLost
	s.leaseLost = false
	s.mu.Unlock()
	if !leaseLost {
		return nil
	}
	return s.refresh(ctx, kv)
}

// reset marks all entries of this relay for writing. If the bucket was recreated, other relays may have published
// this relay's connections as lost.
func (s *RegistryStore) reset(ctx context.Context, kv jetstream.KeyValue) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	status, err := kv.Status(ctx)
	if err != nil {
		return fmt.Errorf("read the status of bucket %s: %w", bucket, err)
	}
	found := registry.Bucket{}
	if status, ok := status.(*jetstream.KeyValueBucketStatus); ok {
		found = registry.Bucket{Created: status.StreamInfo().Created, Seen: status.StreamInfo().TimeStamp}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own.Reset(found, s.cfg.Lease)
	return nil
}

// flush writes pending changes. Failed changes stay pending.
func (s *RegistryStore) flush(ctx context.Context, kv jetstream.KeyValue) error {
	s.mu.Lock()
	if s.unregistered {
		s.mu.Unlock()
		return nil
	}
	changes := s.own.Pending()
	s.mu.Unlock()
	for _, change := range changes {
		if err := s.apply(ctx, kv, change); err != nil {
			return err
		}
	}
	s.republish()
	return nil
}

// apply writes one change. After a conflict the next flush writes it.
func (s *RegistryStore) apply(ctx context.Context, kv jetstream.KeyValue, c registry.Change) error {
	revision, err := s.write(ctx, kv, c)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case errors.Is(err, jetstream.ErrKeyRevisionMismatch):
		s.own.Conflict(c)
		s.wakeRun()
	case err != nil:
		return err
	default:
		s.own.Written(c, revision)
	}
	return nil
}

func (s *RegistryStore) write(ctx context.Context, kv jetstream.KeyValue, c registry.Change) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var revision uint64
	var value []byte
	var err error
	if c.Connection != nil {
		if value, err = json.Marshal(c.Connection); err != nil {
			return 0, fmt.Errorf("encode %s: %w", c.Key, err)
		}
	}
	switch {
	case c.Connection == nil:
		err = kv.Purge(ctx, c.Key, jetstream.PurgeTTL(s.cfg.Lease))
	case c.Revision == 0:
		revision, err = kv.Put(ctx, c.Key, value)
	default:
		revision, err = kv.Update(ctx, c.Key, value, c.Revision)
	}
	if err != nil {
		return 0, fmt.Errorf("write %s to bucket %s: %w", c.Key, bucket, err)
	}
	return revision, nil
}

func (s *RegistryStore) republish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own.Republish(s.cfg.Events.Republish)
}

// handle applies an update of the bucket to the registry.
func (s *RegistryStore) handle(ctx context.Context, entry jetstream.KeyValueEntry) {
	if entry.Operation() == jetstream.KeyValuePut {
		if err := s.cfg.Registry.Put(entry.Key(), entry.Value()); err != nil {
			s.cfg.Logger.WarnContext(ctx, "ignored an invalid entry of the registry", slog.String(logkey.Key, entry.Key()),
				logkey.Error(err))
		}
		return
	}
	if s.handleOwnRemoval(entry) {
		return
	}
	if c, found := s.cfg.Registry.Delete(entry.Key()); found {
		s.cfg.OnRemoved(c)
	}
}

// handleOwnRemoval handles the removal of one of this relay's own entries or its lease: it schedules a rewrite and
// returns true.
func (s *RegistryStore) handleOwnRemoval(removed jetstream.KeyValueEntry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unregistered {
		return false
	}
	if removed.Key() == s.cfg.Self.Key() {
		s.leaseLost = s.leaseLost || removed.Revision() > s.leaseRevision
	} else if !s.own.EntryRemoved(removed.Key(), removed.Revision()) {
		return false
	}
	s.wakeRun()
	return true
}

// endResync removes entries from the registry that are no longer in the bucket. If their relay has no lease, the next
// removeOrphans publishes them as lost.
func (s *RegistryStore) endResync() {
	for _, c := range s.cfg.Registry.EndResync() {
		s.cfg.OnRemoved(c)
		if _, alive := s.cfg.Registry.Relay(c.RelayID); !alive {
			s.unpublished[c.Key()] = c
		}
	}
}

// removeOrphans publishes the connections of dead relays as lost, and then removes their entries. Every relay
// does this; message ids deduplicate. If the relay is alive after all, it sees the removal and publishes
// connected again. more: another batch is left.
func (s *RegistryStore) removeOrphans(ctx context.Context, kv jetstream.KeyValue) (more bool, err error) {
	for _, c := range s.cfg.Registry.Orphans() {
		if _, published := s.unremoved[c.Key()]; !published && c.RelayID != s.cfg.Self.ID {
			s.unpublished[c.Key()] = c
		}
	}
	batch := make([]registry.Connection, 0, min(len(s.unpublished), maxLost))
	for key, c := range s.unpublished {
		if len(batch) == maxLost {
			more = true
			break
		}
		if _, hasLease := s.cfg.Registry.Relay(c.RelayID); hasLease {
			delete(s.unpublished, key)
		} else {
			batch = append(batch, c)
		}
	}
	if err := s.cfg.Events.PublishLost(ctx, batch); err != nil {
		s.cfg.Logger.WarnContext(ctx, "publishing lost connections failed; retrying",
			slog.Int(logkey.Count, len(s.unpublished)), logkey.Error(err))
		return false, nil
	}
	for _, c := range batch {
		delete(s.unpublished, c.Key())
		s.unremoved[c.Key()] = c
	}
	for key := range s.unremoved {
		if _, err := s.write(ctx, kv, registry.Change{Key: key}); err != nil {
			return false, err
		}
		delete(s.unremoved, key)
		if c, found := s.cfg.Registry.Delete(key); found {
			s.cfg.OnRemoved(c)
		}
	}
	return more, nil
}

// Unregister removes this relay's lease and entries, so that no other relay routes here. Run still reads the bucket.
func (s *RegistryStore) Unregister(ctx context.Context) error {
	s.mu.Lock()
	unregistered := s.unregistered
	s.unregistered = true
	keys := append([]string{s.cfg.Self.Key()}, s.own.Keys()...)
	s.mu.Unlock()
	if unregistered {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	kv, err := s.cfg.JetStream.KeyValue(ctx, bucket)
	if err != nil {
		return fmt.Errorf("open bucket %s: %w", bucket, err)
	}
	for _, key := range keys {
		if _, err := s.write(ctx, kv, registry.Change{Key: key}); err != nil {
			return err
		}
	}
	return nil
}
