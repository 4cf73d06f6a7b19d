package cursor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"lockstep.internal/libs/topology"
)

const (
	// idleWait is how long a replay waits for a message before it asks whether any is left, but for tests.
	idleWait = 30 * time.Second
	// requestFor is how long the server is asked to wait for messages at a time.
	requestFor = 30 * time.Second
	// inactiveAfter is when the server forgets the consumer of a reader that is gone.
	inactiveAfter = 2 * time.Minute
)

// batch is what one transaction takes.
type batch[T any] struct {
	messages  []Message[T]
	malformed []malformed[T]
	last      Message[T] // malformed or not; its Sequence is 0 while the batch is empty
	lag       uint64     // messages of the partition after the last one
	bytes     int
	latest    time.Time // when the last one came
}

// malformed is a message that could not be decoded.
type malformed[T any] struct {
	message Message[T]
	err     error
}

func (b *batch[T]) size() int { return len(b.messages) + len(b.malformed) }

// reader receives and decodes messages from a position on while transactions are under way: what comes during one is the batch of the next.
type reader[T any] struct {
	cfg      Config[T]
	consumer jetstream.Consumer
	numbered uint64 // by the consumer, of the last message seen
	out      chan<- *batch[T]
	// idle is called when nothing has come for a while; its error ends the reading.
	idle      func(ctx context.Context) error
	idleAfter time.Duration
}

// openReader makes the server's consumer. It keeps no state there worth keeping: no acknowledgements, in memory, one replica. The batches go to out, which is not buffered.
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
	return &reader[T]{cfg: cfg, consumer: consumer, out: out, idle: func(context.Context) error { return nil }, idleAfter: idleWait}, nil
}

// run reads until ctx is done or something fails.
func (r *reader[T]) run(ctx context.Context) error {
	received := make(chan jetstream.Msg)
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error {
		for {
			if err := r.request(groupCtx, received); err != nil {
				return err
			}
		}
	})
	group.Go(func() error { return r.gather(groupCtx, received) })
	return group.Wait() //nolint:wrapcheck // both say what failed
}

// asking is the context of a request for messages. The server is told of its deadline and answers by then; it ends with the reader only, since what
// the server sent at the last moment would be lost otherwise.
type asking struct {
	context.Context //nolint:containedctx // it is a context

	until time.Time
}

// Deadline implements context.Context.
func (a asking) Deadline() (time.Time, bool) { return a.until, true }

// request passes on a batch of messages as they come, or those that come in a while. Nothing of it is left when it returns.
//
// One request after the other, rather than the client's continuous reading: that drops messages when somebody stops taking them and the server has more to say than how
// many were asked for.
func (r *reader[T]) request(ctx context.Context, received chan<- jetstream.Msg) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A message may be larger than a batch: then it is one.
	answer, err := r.consumer.Fetch(r.cfg.Batch,
		jetstream.FetchContext(asking{ctx, time.Now().Add(requestFor)}), jetstream.FetchMaxBytes(max(r.cfg.BatchBytes, 2*topology.MaxMessageSize)))
	if err != nil {
		return fmt.Errorf("ask for messages: %w", err)
	}
	defer func() {
		cancel()
		for range answer.Messages() {
		}
	}()
	for {
		select {
		case m, more := <-answer.Messages():
			if !more {
				if err := answer.Error(); err != nil {
					return fmt.Errorf("receive messages: %w", err)
				}
				return nil
			}
			select {
			case received <- m:
			case <-ctx.Done():
				return fmt.Errorf("receive messages: %w", context.Cause(ctx))
			}
		case <-ctx.Done():
			return fmt.Errorf("receive messages: %w", context.Cause(ctx))
		}
	}
}

// gather makes batches of what is received, and hands each on as soon as somebody takes it and it is ripe.
func (r *reader[T]) gather(ctx context.Context, received <-chan jetstream.Msg) error {
	b := &batch[T]{}
	var over jetstream.Msg // did not fit into the batch
	timer := time.NewTimer(r.idleAfter)
	defer timer.Stop()
	for {
		in, out := received, r.out
		if over != nil || b.size() >= r.cfg.Batch {
			in = nil
		} else if !r.ripe(b) {
			out = nil
		}
		select {
		case m := <-in:
			if b.size() > 0 && b.bytes+len(m.Data()) > r.cfg.BatchBytes {
				over = m
				continue
			}
			if err := r.add(b, m); err != nil {
				return err
			}
			timer.Reset(r.cfg.Linger)
		case out <- b:
			b = &batch[T]{}
			timer.Reset(r.idleAfter)
			if over == nil {
				continue
			}
			if err := r.add(b, over); err != nil {
				return err
			}
			over = nil
			timer.Reset(r.cfg.Linger)
		case <-timer.C: // the batch is ripe now, or there is none
			if b.size() > 0 {
				continue
			}
			if err := r.idle(ctx); err != nil {
				return err
			}
			timer.Reset(r.idleAfter)
		case <-ctx.Done():
			return fmt.Errorf("read: %w", context.Cause(ctx))
		}
	}
}

// ripe says that there is nothing that a batch which is not full should wait for.
func (r *reader[T]) ripe(b *batch[T]) bool {
	return b.size() > 0 && (b.lag == 0 || time.Since(b.latest) >= r.cfg.Linger)
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
	b.last, b.lag, b.bytes, b.latest = m, meta.NumPending, b.bytes+len(m.Data), time.Now()
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
