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
	// Lost is told of connections whose relay has ended without a word, by every relay that notices. Optional.
	Lost func(registry.Connection)
	// Gone is told of every connection that the registry has no more. Optional.
	Gone   func(registry.Connection)
	Logger *slog.Logger
}

// Book is made by [NewBook].
type Book struct {
	cfg Config

	mu sync.Mutex
	// held is what the bucket shall have of this relay, by key; nil what shall go.
	held    map[string][]byte
	changed map[string]struct{}
	wake    chan struct{}
	// retired is that the bucket shall have nothing of this relay any more, lapsed that its lease was lost.
	retired, lapsed bool
}

// NewBook makes a book that is written while Run runs.
func NewBook(cfg Config) *Book {
	if cfg.Lease == 0 {
		cfg.Lease = DefaultLease
	}
	return &Book{cfg: cfg, held: map[string][]byte{}, changed: map[string]struct{}{}, wake: make(chan struct{}, 1)}
}

// At says where other relays reach this one. It is called before Run.
func (b *Book) At(url string) { b.cfg.Self.URL = url }

// Connected notes a connection of this relay.
func (b *Book) Connected(c registry.Connection) {
	c.RelayID = b.cfg.Self.ID
	value, err := json.Marshal(c)
	if err != nil { // of what has come in a header, nothing can be in the way
		b.cfg.Logger.Error("a connection cannot be written", "agent_id", c.AgentID, "connection_id", c.ID, "error", err)
		return
	}
	b.note(c.Key(), value)
}

// Disconnected takes it back.
func (b *Book) Disconnected(c registry.Connection, _ time.Time, _ events.DisconnectReason) {
	b.note(c.Key(), nil)
}

func (b *Book) note(key string, value []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if value == nil {
		delete(b.held, key)
	} else {
		b.held[key] = value
	}
	b.changed[key] = struct{}{}
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
	b.everything()
	if err := b.flush(ctx, kv); err != nil {
		return false, err
	}
	watcher, err := kv.WatchAll(ctx)
	if err != nil {
		return false, fmt.Errorf("watch bucket %s: %w", bucket, err)
	}
	defer watcher.Stop() //nolint:errcheck // it is over
	b.cfg.Registry.Doubt()
	believed := time.NewTimer(b.cfg.Lease)
	defer believed.Stop()
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
			default:
				b.take(ctx, entry)
			}
		case <-lease.C:
			if err := b.refresh(ctx); err != nil {
				return false, err
			}
		case <-b.wake:
			if err := b.renew(ctx); err != nil {
				return false, err
			}
			if err := b.flush(ctx, kv); err != nil {
				return false, err
			}
		case <-believed.C:
			b.dispel()
			if err := b.clean(ctx, kv); err != nil {
				return false, err
			}
			believed.Reset(b.cfg.Lease)
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
	if _, err := b.cfg.JetStream.Publish(ctx, "$KV."+bucket+"."+b.cfg.Self.Key(), value, jetstream.WithMsgTTL(b.cfg.Lease)); err != nil {
		return fmt.Errorf("refresh the lease in bucket %s: %w", bucket, err)
	}
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

// everything is to be written once more.
func (b *Book) everything() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key := range b.held {
		b.changed[key] = struct{}{}
	}
}

// flush writes what has changed. What it could not write is still to be written.
func (b *Book) flush(ctx context.Context, kv jetstream.KeyValue) error {
	b.mu.Lock()
	if b.retired {
		b.mu.Unlock()
		return nil
	}
	changed := make(map[string][]byte, len(b.changed))
	for key := range b.changed {
		changed[key] = b.held[key]
	}
	clear(b.changed)
	b.mu.Unlock()
	var failed error
	for key, value := range changed {
		if failed == nil {
			failed = b.write(ctx, kv, key, value)
		}
		if failed != nil {
			b.mu.Lock()
			b.changed[key] = struct{}{}
			b.mu.Unlock()
		}
	}
	return failed
}

func (b *Book) write(ctx context.Context, kv jetstream.KeyValue, key string, value []byte) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	var err error
	if value == nil {
		err = kv.Purge(ctx, key, jetstream.PurgeTTL(b.cfg.Lease))
	} else {
		_, err = kv.Put(ctx, key, value)
	}
	if err != nil {
		return fmt.Errorf("write %s into bucket %s: %w", key, bucket, err)
	}
	return nil
}

func (b *Book) take(ctx context.Context, entry jetstream.KeyValueEntry) {
	if entry.Operation() != jetstream.KeyValuePut {
		if b.insist(entry.Key()) {
			return
		}
		if c, was := b.cfg.Registry.Delete(entry.Key()); was && b.cfg.Gone != nil {
			b.cfg.Gone(c)
		}
		return
	}
	if err := b.cfg.Registry.Put(entry.Key(), entry.Value()); err != nil {
		b.cfg.Logger.WarnContext(ctx, "an entry of the registry is not understood, and not followed", "key", entry.Key(), "error", err)
	}
}

// dispel drops what NATS has lost and nobody has written again. Where its relay is gone, too, that ended while NATS was away, and nobody else tells.
func (b *Book) dispel() {
	for _, c := range b.cfg.Registry.Dispel() {
		if b.cfg.Gone != nil {
			b.cfg.Gone(c)
		}
		if _, there := b.cfg.Registry.Relay(c.RelayID); !there && b.cfg.Lost != nil {
			b.cfg.Lost(c)
		}
	}
}

// insist has an entry of this relay, or its lease, written again at once. Others removed it, or it has expired, since this relay gave no sign of life for as long as its lease.
func (b *Book) insist(key string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, holds := b.held[key]
	lease := key == b.cfg.Self.Key()
	if b.retired || !holds && !lease {
		return false
	}
	if lease {
		b.lapsed = true
	} else {
		b.changed[key] = struct{}{}
	}
	select {
	case b.wake <- struct{}{}:
	default:
	}
	return true
}

// clean removes what relays have left that were killed. Every relay does so: who comes later finds nothing.
func (b *Book) clean(ctx context.Context, kv jetstream.KeyValue) error {
	var failed []error
	for _, c := range b.cfg.Registry.Orphans() {
		if c.RelayID == b.cfg.Self.ID {
			continue
		}
		if err := b.write(ctx, kv, c.Key(), nil); err != nil {
			failed = append(failed, err)
		} else if b.cfg.Lost != nil {
			b.cfg.Lost(c)
		}
	}
	return errors.Join(failed...)
}

// Retire takes the lease back, and with it all that is held: no other relay sends anything here. What others do is still followed while Run runs.
func (b *Book) Retire(ctx context.Context) error {
	b.mu.Lock()
	again := b.retired
	b.retired = true
	keys := []string{b.cfg.Self.Key()}
	for key := range b.held {
		keys = append(keys, key)
	}
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
		if err := b.write(ctx, kv, key, nil); err != nil {
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
