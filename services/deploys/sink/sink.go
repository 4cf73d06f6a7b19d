package sink

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/retry"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/cdevent"
)

// Sink delivers facts to one destination. Its methods must be safe for concurrent use.
type Sink interface {
	// Traits always returns the same value.
	Traits() Traits
	// Thread returns the name of the thread of a fact: of the object at the destination that the fact changes, such as the
	// message of its rollout. Facts of one thread are delivered in order, one at a time. It returns false if the sink
	// ignores the fact.
	Thread(f events.DeployFact) (string, bool)
	// Deliver delivers one fact. It may be called again for the same fact, even after a success: Delivery.Key is the
	// idempotency key. After an error marked by [retry.Permanent], the fact is dead-lettered. After a [RetryAfter], it is
	// retried after that delay. After any other error, it is retried with back-off.
	Deliver(ctx context.Context, d Delivery) error
}

// Traits describe how a sink receives facts.
type Traits struct {
	// Latest means that the sink needs only the latest state of a thread: all waiting facts are one delivery.
	Latest bool
	// Parallel is the number of threads that are delivered concurrently. Defaults to 1.
	Parallel int
	// Batch is the maximum number of facts of a thread in one delivery. A sink with more than 1 must be a [Batcher].
	Batch int
}

// Batcher is a sink that receives several facts of a thread together. It returns one error for each
// fact, as Deliver does.
type Batcher interface {
	DeliverBatch(ctx context.Context, batch []Delivery) []error
}

// RateLimited is a sink with a destination that limits writes.
type RateLimited interface {
	// AwaitLimit waits until the destination accepts a write. Facts that are received meanwhile join the delivery.
	AwaitLimit(ctx context.Context) error
}

// Delivery is one attempt to deliver a fact.
type Delivery struct {
	// Key is the id of the event, the same in every attempt.
	Key string
	// Thread is the name that the sink returned.
	Thread string
	Fact   events.DeployFact
	Event  event.Event
	// Earlier facts of the thread that waited before this one, in order. Only for sinks with
	// Traits.Latest.
	Earlier []events.DeployFact
	Threads Threads
	// Attempt counts from 1.
	Attempt int
	// Requested means that an operator requested the delivery.
	Requested bool
}

// All returns the facts of the delivery in order: Earlier, then Fact.
func (d Delivery) All() []events.DeployFact {
	return append(append([]events.DeployFact(nil), d.Earlier...), d.Fact)
}

// Threads stores a value per sink and thread: the id and state of the object at the destination, such as the Slack
// message of a rollout. A value is durable when the method returns.
type Threads interface {
	// Get returns the value of a thread, or false if it has none.
	Get(ctx context.Context, thread string) (json.RawMessage, bool, error)
	// Claim stores the value unless the thread has one. It returns false if the thread has one.
	Claim(ctx context.Context, thread string, value json.RawMessage) (bool, error)
	// Put stores the value of a thread.
	Put(ctx context.Context, thread string, value json.RawMessage) error
}

// LoadThread returns the stored value of the delivery's thread, or the zero T.
func LoadThread[T any](ctx context.Context, d Delivery) (T, error) {
	var value T
	raw, found, err := d.Threads.Get(ctx, d.Thread)
	if err != nil || !found {
		return value, err
	}
	if err := json.Unmarshal(raw, &value); err != nil {
		return value, retry.Permanent(fmt.Errorf("decode the value of thread %s: %w", d.Thread, err))
	}
	return value, nil
}

// SaveThread stores the value of the delivery's thread.
func SaveThread[T any](ctx context.Context, d Delivery, value T) error {
	raw, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode the value of thread %s: %w", d.Thread, err)
	}
	return d.Threads.Put(ctx, d.Thread, raw)
}

// Read decodes a message of DEPLOYS: a CloudEvent that contains a CDEvent, with the fact as its custom data.
func Read(header nats.Header, data []byte) (event.Event, events.DeployFact, error) {
	e, err := event.Decode(header, data)
	if err != nil {
		return event.Event{}, events.DeployFact{}, err
	}
	fact, err := cdevent.Read(e)
	if err == nil && fact.Workload.Name == "" {
		err = fmt.Errorf("event %s: the fact has no workload", e.ID())
	}
	if err != nil {
		return event.Event{}, events.DeployFact{}, err
	}
	return e, fact, nil
}
