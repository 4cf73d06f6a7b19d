package cursor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// idleWait is reader.idle, but for tests.
	idleWait = 30 * time.Second
	// inactiveAfter is when the server forgets the consumer of a reader that is gone.
	inactiveAfter = 2 * time.Minute
)

// batch is what one transaction takes.
type batch[T any] struct {
	messages  []Message[T]
	malformed []malformed[T]
	last      Message[T] // malformed or not; its Sequence is 0 while the batch is empty
	lag       uint64     // messages of the partition after the last one
}

// malformed is a message that could not be decoded.
type malformed[T any] struct {
	message Message[T]
	err     error
}

// reader fetches and decodes batches from a position on, ahead of the transactions by one batch.
type reader[T any] struct {
	cfg      Config[T]
	consumer jetstream.Consumer
	numbered uint64 // by the consumer, of the last message seen
	out      chan<- *batch[T]
	idle     time.Duration // how long one request for the next message stays open
}

// openReader makes the server's consumer. It keeps no state there worth keeping: no acknowledgements, in memory, one replica.
func openReader[T any](ctx context.Context, cfg Config[T], stream jetstream.Stream, after uint64, out chan<- *batch[T]) (*reader[T], error) {
	consumer, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		Description:       "cursor of " + cfg.Service + "/" + cfg.Name,
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       after + 1,
		AckPolicy:         jetstream.AckNonePolicy,
		FilterSubjects:    cfg.Subjects,
		InactiveThreshold: inactiveAfter,
		Replicas:          1,
		MemoryStorage:     true,
	})
	if err != nil {
		return nil, fmt.Errorf("create a consumer from %d on: %w", after+1, err)
	}
	return &reader[T]{cfg: cfg, consumer: consumer, out: out, idle: idleWait}, nil
}

// run reads until ctx is done or something fails.
func (r *reader[T]) run(ctx context.Context) error {
	for {
		b, err := r.next(ctx)
		if err != nil {
			return err
		}
		if b.last.Sequence == 0 {
			continue
		}
		if err := r.handOn(ctx, b); err != nil {
			return err
		}
	}
}

// next is the next batch; empty when nothing has come for long.
func (r *reader[T]) next(ctx context.Context) (*batch[T], error) {
	b := &batch[T]{}
	// Nothing may come for long: wait for one message, then take what is there, and what comes in a moment.
	if err := r.fetchFirst(ctx, b); err != nil || b.last.Sequence == 0 {
		return b, err
	}
	if room := r.cfg.Batch - 1; room > 0 {
		wait := r.cfg.Linger
		if r.cfg.Backlog > wait && b.lag > 0 {
			wait, room = r.cfg.Backlog, int(min(uint64(room), b.lag))
		}
		if err := r.fetch(ctx, b, room, wait, jetstream.FetchMaxBytes(r.cfg.BatchBytes)); err != nil {
			return nil, err
		}
	}
	return b, nil
}

func (r *reader[T]) handOn(ctx context.Context, b *batch[T]) error {
	select {
	case r.out <- b:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("hand on a batch: %w", context.Cause(ctx))
	}
}

func (r *reader[T]) fetchFirst(ctx context.Context, b *batch[T]) error {
	// Of any size: it is to come some day.
	return r.fetch(ctx, b, 1, r.idle)
}

// asking is the context of a request for messages. The server is told of its deadline and answers by then; it ends with the reader only, since what
// the server sent at the last moment would be lost otherwise.
type asking struct {
	context.Context //nolint:containedctx // it is a context

	until time.Time
}

// Deadline implements context.Context.
func (a asking) Deadline() (time.Time, bool) { return a.until, true }

// fetch adds up to n messages to the batch, those that come within about the time given. Nothing of it is left when it returns.
func (r *reader[T]) fetch(ctx context.Context, b *batch[T], n int, wait time.Duration, options ...jetstream.FetchOpt) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Of what is left until the deadline the client keeps a tenth for itself, at most a second.
	until := time.Now().Add(wait + min(wait/9, time.Second))
	answer, err := r.consumer.Fetch(n, append(options, jetstream.FetchContext(asking{ctx, until}))...)
	switch {
	case err != nil && ctx.Err() == nil && !time.Now().Before(until):
		return nil //nolint:nilerr // a moment so short is over before it can be asked for
	case err != nil:
		return fmt.Errorf("ask for messages: %w", err)
	}
	defer func() {
		cancel()
		for range answer.Messages() { //nolint:revive // its goroutine ends with the channel
		}
	}()
	for {
		select {
		case m, more := <-answer.Messages():
			if !more {
				if err := answer.Error(); err != nil {
					return fmt.Errorf("fetch messages: %w", err)
				}
				return nil
			}
			if err := r.add(b, m); err != nil {
				return err
			}
		case <-ctx.Done():
			return fmt.Errorf("fetch messages: %w", context.Cause(ctx))
		}
	}
}

// errGap says that messages were lost between the server and here.
var errGap = errors.New("the consumer's numbering has a gap")

func (r *reader[T]) add(b *batch[T], received jetstream.Msg) error {
	meta, err := received.Metadata()
	if err != nil {
		return fmt.Errorf("read a message's metadata: %w", err)
	}
	if meta.Sequence.Consumer != r.numbered+1 {
		return fmt.Errorf("%w: %d follows %d", errGap, meta.Sequence.Consumer, r.numbered)
	}
	r.numbered = meta.Sequence.Consumer
	m := Message[T]{
		Subject: received.Subject(), Header: received.Headers(), Data: received.Data(), Sequence: meta.Sequence.Stream, Stored: meta.Timestamp,
	}
	b.last, b.lag = m, meta.NumPending
	if err := r.cfg.Decode(&m); err != nil {
		b.malformed = append(b.malformed, malformed[T]{message: m, err: err})
		return nil //nolint:nilerr // the message is at fault, not the reading: it goes to DEAD
	}
	if b.messages == nil {
		b.messages = make([]Message[T], 0, min(uint64(r.cfg.Batch), meta.NumPending+1))
	}
	b.messages = append(b.messages, m)
	return nil
}

func markOf(subject string, header nats.Header, data []byte, sequence uint64, stored time.Time) mark {
	return mark{sequence: sequence, id: identify(subject, header, data), stored: stored.UnixNano()}
}
