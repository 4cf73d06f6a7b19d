package sink

import (
	"context"
	"encoding/json"

	"lockstep.internal/libs/event"
	"lockstep.internal/schemas/gen/events"
)

// Sink brings facts to one destination. Its methods may be called from any goroutine.
type Sink interface {
	// Traits are asked for once.
	Traits() Traits
	// Thread names what the fact belongs to at the destination, such as the message of its rollout: facts of one thread are delivered in order, one at a time.
	// False says that this sink has nothing to tell of it.
	Thread(f events.DeployFact) (string, bool)
	// Deliver brings one fact to its destination. It may be called again for the same delivery, also after it succeeded: Key is the idempotency key. An
	// error made by [Permanent] puts the fact on DEAD; a [RetryAfter] says when to try again; any other is tried again with back-off.
	Deliver(ctx context.Context, d Delivery) error
}

// Traits say how a sink wants to be served.
type Traits struct {
	// Latest says that only the latest fact of a thread matters: facts that waited come as one delivery.
	Latest bool
	// Parallel is how many threads are served at once. Defaults to 1.
	Parallel int
	// Batch is how many facts of a thread are delivered at once; above 1 the sink is a [Batcher].
	Batch int
}

// Batcher is a sink that takes several facts of a thread at once. It returns one error for each, as of Deliver, nil for those delivered.
type Batcher interface {
	DeliverBatch(ctx context.Context, batch []Delivery) []error
}

// Pacer is a sink whose destination limits how often it may be written to.
type Pacer interface {
	// Pace waits until the destination would take a write: what comes in the meantime is part of the delivery.
	Pace(ctx context.Context) error
}

// Delivery is one fact on its way.
type Delivery struct {
	// Key is the same whenever the same fact is delivered: the id of its event.
	Key string
	// Thread as the sink named it.
	Thread string
	Fact   events.DeployFact
	Event  event.Event
	// Earlier are the facts of the thread that waited before this one, in order; only of sinks to which the latest matters.
	Earlier []events.DeployFact
	Threads Threads
	// Attempt counts from 1.
	Attempt int
	// Again says that somebody asked for it by hand.
	Again bool
}

// All are the facts of the delivery in order, its own last.
func (d Delivery) All() []events.DeployFact {
	return append(append([]events.DeployFact(nil), d.Earlier...), d.Fact)
}

// Threads remembers, per sink, what an external thing is called: the Slack message of a rollout, the comment of a group. What was put is durable.
type Threads interface {
	Get(ctx context.Context, thread string) (json.RawMessage, bool, error)
	// Claim puts the value unless there is one; false says that there was.
	Claim(ctx context.Context, thread string, value json.RawMessage) (bool, error)
	Put(ctx context.Context, thread string, value json.RawMessage) error
}
