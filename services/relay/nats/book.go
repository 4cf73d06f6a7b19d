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

	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/relay/registry"
)

const (
	// bucket of the registry.
	bucket = topology.BucketRelays
	// DefaultLease is how long a relay is believed to be there after its last sign of life.
	DefaultLease = 15 * time.Second
	// refreshes of the lease within its length.
	refreshes = 3
	// answerTimeout bounds one request to NATS.
	answerTimeout = 5 * time.Second
	// openEvery is how often a bucket is looked for that is not there.
	openEvery = 200 * time.Millisecond
)

// Config of a [Book]. Required are JetStream, Self, Registry and Logger.
type Config struct {
	JetStream jetstream.JetStream
	Self      registry.Relay
	Registry  *registry.Registry
	// Lease defaults to [DefaultLease]; whole seconds.
	Lease time.Duration
	// Announcer is told who comes and goes. Defaults to nobody.
	Announcer Announcer
	// Gone is told of every connection that the registry has no more. Optional.
	Gone   func(registry.Connection)
	Logger *slog.Logger
}

// Announcer is told who comes and goes; a [Teller].
type Announcer interface {
	Connected(c registry.Connection)
	Disconnected(c registry.Connection, at time.Time, why events.DisconnectReason)
	// Again tells of a connection of this relay that others have told to be lost. It does not wait: false is that it has to be told later.
	Again(c registry.Connection) bool
	// Lost tells of connections whose relay has ended without a word, and returns when that is stored. Every relay that notices does so.
	Lost(ctx context.Context, lost []registry.Connection) error
}

// Book is made by [NewBook].
type Book struct {
	cfg Config

	mu     sync.Mutex
	claims *registry.Claims
	// lease is the revision of this relay's own.
	lease uint64
	wake  chan struct{}
	// retired is that the bucket shall have nothing of this relay any more, lapsed that its lease was lost.
	retired, lapsed bool

	// Only Run uses these. lost are connections whose relay has ended without a word, which is to be told; told are those of which it was, and whose entries are to go.
	lost, told map[string]registry.Connection
}

// NewBook makes a book that is written while Run runs.
func NewBook(cfg Config) *Book {
	if cfg.Lease == 0 {
		cfg.Lease = DefaultLease
	}
	if cfg.Announcer == nil {
		cfg.Announcer = nobody{}
	}
	return &Book{cfg: cfg, claims: registry.NewClaims(), wake: make(chan struct{}, 1), lost: map[string]registry.Connection{}, told: map[string]registry.Connection{}}
}

// At says where other relays reach this one. It is called before Run.
func (b *Book) At(url string) { b.cfg.Self.URL = url }

// Connected notes a connection of this relay, and has it announced.
func (b *Book) Connected(c registry.Connection) {
	c.RelayID = b.cfg.Self.ID
	b.mu.Lock()
	b.claims.Hold(c)
	b.stir()
	b.mu.Unlock()
	b.cfg.Announcer.Connected(c)
}

// Disconnected takes it back, and has that announced.
func (b *Book) Disconnected(c registry.Connection, at time.Time, why events.DisconnectReason) {
	b.mu.Lock()
	if was, held := b.claims.Drop(c.Key()); held {
		c = was
	}
	b.stir()
	b.mu.Unlock()
	b.cfg.Announcer.Disconnected(c, at, why) // nothing is told again of it after that
}

// stir has Run look at what is to be written.
func (b *Book) stir() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// Run keeps the bucket until ctx is done, and then takes back what this relay has in it; see [Book.Retire]. An error is of NATS; it may then be called again. ready is called once all that the bucket has is known.
func (b *Book) Run(ctx context.Context, ready func()) error {
	for {
		again, err := b.session(ctx, ready)
		if ctx.Err() != nil {
			return b.Retire(context.WithoutCancel(ctx))
		}
		if !again {
			return err
		}
	}
}

// session lasts as long as one connection to NATS. again says that it was made anew.
func (b *Book) session(ctx context.Context, ready func()) (again bool, err error) {
	conn := b.cfg.JetStream.Conn()
	status := conn.StatusChanged(nats.CONNECTED)
	defer conn.RemoveStatusListener(status)
	kv, err := b.open(ctx)
	if err != nil {
		return false, err
	}
	if err := b.refresh(ctx); err != nil {
		return false, err
	}
	if err := b.everything(ctx, kv); err != nil {
		return false, err
	}
	if err := b.flush(ctx, kv); err != nil {
		return false, err
	}
	watcher, err := kv.WatchAll(ctx)
	if err != nil {
		return false, fmt.Errorf("watch bucket %s: %w", bucket, err)
	}
	defer watcher.Stop() //nolint:errcheck // it is over
	b.cfg.Registry.Doubt()
	believed := time.NewTimer(0)
	defer believed.Stop()
	believed.Stop() // until all is read: a lease is newer than what counts by it
	lease := time.NewTicker(b.cfg.Lease / refreshes)
	defer lease.Stop()
	for {
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
				believed.Reset(b.cfg.Lease)
			default:
				b.take(ctx, entry)
			}
		case <-lease.C:
			if err := b.refresh(ctx); err != nil {
				return false, err
			}
			b.tellAgain()
		case <-b.wake:
			if err := b.renew(ctx); err != nil {
				return false, err
			}
			if err := b.flush(ctx, kv); err != nil {
				return false, err
			}
		case <-believed.C:
			b.dispel()
			more, err := b.clean(ctx, kv)
			if err != nil {
				return false, err
			}
			if more {
				believed.Reset(0)
			} else {
				believed.Reset(b.cfg.Lease)
			}
		}
	}
}

// open waits a moment for a bucket that is not there: when NATS has lost it, the state service makes it again.
func (b *Book) open(ctx context.Context) (jetstream.KeyValue, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	again := time.NewTicker(openEvery)
	defer again.Stop()
	for {
		kv, err := b.cfg.JetStream.KeyValue(ctx, bucket)
		switch {
		case err == nil:
			return kv, nil
		case !errors.Is(err, jetstream.ErrBucketNotFound):
			return nil, fmt.Errorf("open bucket %s: %w", bucket, err)
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("open bucket %s: it is not there: the service state makes it", bucket)
		}
	}
}

// refresh writes the lease. It is published as it is: a key that a bucket's own methods write anew never expires.
func (b *Book) refresh(ctx context.Context) error {
	if b.isRetired() {
		return nil
	}
	value, err := json.Marshal(b.cfg.Self)
	if err != nil {
		return fmt.Errorf("write the lease: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	ack, err := b.cfg.JetStream.Publish(ctx, "$KV."+bucket+"."+b.cfg.Self.Key(), value, jetstream.WithMsgTTL(b.cfg.Lease))
	if err != nil {
		return fmt.Errorf("refresh the lease in bucket %s: %w", bucket, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lease = ack.Sequence
	return nil
}

// renew writes the lease if it was lost.
func (b *Book) renew(ctx context.Context) error {
	b.mu.Lock()
	lapsed := b.lapsed
	b.lapsed = false
	b.mu.Unlock()
	if !lapsed {
		return nil
	}
	return b.refresh(ctx)
}

// everything is to be written once more, and what others may have told to be lost is to be told again.
func (b *Book) everything(ctx context.Context, kv jetstream.KeyValue) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	status, err := kv.Status(ctx)
	if err != nil {
		return fmt.Errorf("look at bucket %s: %w", bucket, err)
	}
	found := registry.Bucket{}
	if s, is := status.(*jetstream.KeyValueBucketStatus); is {
		found = registry.Bucket{Created: s.StreamInfo().Created, Seen: s.StreamInfo().TimeStamp}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.claims.Begin(found, b.cfg.Lease)
	return nil
}

// flush writes what has changed. What it could not write is still to be written.
func (b *Book) flush(ctx context.Context, kv jetstream.KeyValue) error {
	b.mu.Lock()
	if b.retired {
		b.mu.Unlock()
		return nil
	}
	changes := b.claims.Changes()
	b.mu.Unlock()
	for _, change := range changes {
		if err := b.change(ctx, kv, change); err != nil {
			return err
		}
	}
	b.tellAgain()
	return nil
}

// change makes one. An entry that others have removed is left to the next flush.
func (b *Book) change(ctx context.Context, kv jetstream.KeyValue, c registry.Change) error {
	revision, err := b.write(ctx, kv, c)
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case errors.Is(err, jetstream.ErrKeyRevisionMismatch):
		b.claims.Mistaken(c)
		b.stir()
	case err != nil:
		return err
	default:
		b.claims.Made(c, revision)
	}
	return nil
}

func (b *Book) write(ctx context.Context, kv jetstream.KeyValue, c registry.Change) (revision uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	var value []byte
	if c.Connection != nil {
		if value, err = json.Marshal(c.Connection); err != nil {
			return 0, fmt.Errorf("write %s: %w", c.Key, err)
		}
	}
	switch {
	case c.Connection == nil:
		err = kv.Purge(ctx, c.Key, jetstream.PurgeTTL(b.cfg.Lease))
	case c.Revision == 0:
		revision, err = kv.Put(ctx, c.Key, value)
	default:
		revision, err = kv.Update(ctx, c.Key, value, c.Revision)
	}
	if err != nil {
		return 0, fmt.Errorf("write %s into bucket %s: %w", c.Key, bucket, err)
	}
	return revision, nil
}

// tellAgain of what others have told to be lost.
func (b *Book) tellAgain() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.claims.Again(b.cfg.Announcer.Again)
}

func (b *Book) take(ctx context.Context, entry jetstream.KeyValueEntry) {
	if entry.Operation() != jetstream.KeyValuePut {
		if b.insist(entry) {
			return
		}
		if c, was := b.cfg.Registry.Delete(entry.Key()); was {
			b.gone(c)
		}
		return
	}
	if err := b.cfg.Registry.Put(entry.Key(), entry.Value()); err != nil {
		b.cfg.Logger.WarnContext(ctx, "an entry of the registry is not understood, and not followed", "key", entry.Key(), "error", err)
	}
}

// insist has an entry of this relay, or its lease, written again at once. Others removed it, or it has expired, since this relay gave no sign of life for as long as its lease.
func (b *Book) insist(removed jetstream.KeyValueEntry) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.retired {
		return false
	}
	if removed.Key() == b.cfg.Self.Key() {
		b.lapsed = b.lapsed || removed.Revision() > b.lease
	} else if !b.claims.Removed(removed.Key(), removed.Revision()) {
		return false
	}
	b.stir()
	return true
}

// Retire takes the lease back, and with it all that is held: no other relay sends anything here. What others do is still followed while Run runs.
func (b *Book) Retire(ctx context.Context) error {
	b.mu.Lock()
	again := b.retired
	b.retired = true
	keys := append([]string{b.cfg.Self.Key()}, b.claims.Keys()...)
	b.mu.Unlock()
	if again {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	kv, err := b.cfg.JetStream.KeyValue(ctx, bucket)
	if err != nil {
		return fmt.Errorf("open bucket %s: %w", bucket, err)
	}
	for _, key := range keys {
		if _, err := b.write(ctx, kv, registry.Change{Key: key}); err != nil {
			return err
		}
	}
	return nil
}

func (b *Book) isRetired() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.retired
}
