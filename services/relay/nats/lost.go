package nats

import (
	"context"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/relay/registry"
)

// maxLost is how many connections are told to be lost at a time, so that the lease is refreshed in between.
const maxLost = 500

// dispel drops what NATS has lost and nobody has written again. Where its relay is gone, too, that ended while NATS was away, and nobody else tells.
func (b *Book) dispel() {
	for _, c := range b.cfg.Registry.Dispel() {
		b.gone(c)
		if _, there := b.cfg.Registry.Relay(c.RelayID); !there {
			b.lost[c.Key()] = c
		}
	}
}

func (b *Book) gone(c registry.Connection) {
	if b.cfg.Gone != nil {
		b.cfg.Gone(c)
	}
}

// clean tells what relays have left that were killed, and removes it: who comes later finds nothing. Every relay does so. It is told before it is removed, by which a relay that is not dead after
// all learns of it, and then tells the contrary: that comes later in the stream. more is that there is more of it.
func (b *Book) clean(ctx context.Context, kv jetstream.KeyValue) (more bool, err error) {
	for _, c := range b.cfg.Registry.Orphans() {
		if _, told := b.told[c.Key()]; !told && c.RelayID != b.cfg.Self.ID {
			b.lost[c.Key()] = c
		}
	}
	batch := make([]registry.Connection, 0, min(len(b.lost), maxLost))
	for key, c := range b.lost {
		if len(batch) == maxLost {
			more = true
			break
		}
		if _, back := b.cfg.Registry.Relay(c.RelayID); back {
			delete(b.lost, key)
		} else {
			batch = append(batch, c)
		}
	}
	if err := b.cfg.Announcer.Lost(ctx, batch); err != nil {
		b.cfg.Logger.WarnContext(ctx, "connections are lost, which could not be told, and is tried again", slog.Int("connections", len(b.lost)), slog.Any("error", err))
		return false, nil
	}
	for _, c := range batch {
		delete(b.lost, c.Key())
		b.told[c.Key()] = c
	}
	for key := range b.told {
		if _, err := b.write(ctx, kv, registry.Change{Key: key}); err != nil {
			return false, err
		}
		delete(b.told, key)
		if c, was := b.cfg.Registry.Delete(key); was {
			b.gone(c)
		}
	}
	return more, nil
}

// nobody is told.
type nobody struct{}

func (nobody) Connected(registry.Connection) {}

func (nobody) Disconnected(registry.Connection, time.Time, events.DisconnectReason) {}

func (nobody) Again(registry.Connection) bool { return true }

func (nobody) Lost(context.Context, []registry.Connection) error { return nil }
