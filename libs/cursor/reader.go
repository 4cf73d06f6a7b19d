package cursor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"lockstep.internal/libs/jetstreamapi"
	"lockstep.internal/libs/topology"
)

const (
	// idleWait is the time without a message after which a replay checks for the end of the stream.
	idleWait = 30 * time.Second
	// singleRequests is the number of messages that are requested one by one after an empty message. A response of one
	// message cannot lose any, so a series of empty messages needs no new consumer for each.
	singleRequests = 100
)

// reader receives and decodes messages while transactions run. The messages that arrive during one
// transaction are the batch of the next.
type reader[T any] struct {
	cfg                  Config[T]
	consumer             jetstream.Consumer
	lastConsumerSequence uint64
	lastSequence         uint64 // on the stream
	// responseEnded: the server drops the messages after the last one; see [Consumers].
	responseEnded bool
	// single is the number of messages that are still requested one by one.
	single int
	out    chan<- *batch[T]
	// onIdle is called after idleAfter without a message. If it returns an error, run ends.
	onIdle    func(ctx context.Context) error
	idleAfter time.Duration
}

// openReader creates the consumer on the server: without acknowledgements, in memory, with one
// replica. The reader requests the first messages one by one, as many as single. It sends batches to out, which must
// not be buffered.
func openReader[T any](
	ctx context.Context, cfg Config[T], name string, after uint64, single int, out chan<- *batch[T],
) (*reader[T], error) {
	consumer, err := cfg.Consumers.Reader(ctx, topology.ReaderConsumer{
		Name: name, Stream: cfg.Stream, Subjects: cfg.Subjects, StartSequence: after + 1,
	})
	if err != nil {
		return nil, fmt.Errorf("create a consumer from sequence %d: %w", after+1, err)
	}
	noIdle := func(context.Context) error { return nil }
	return &reader[T]{
		cfg: cfg, consumer: consumer, single: single, out: out, onIdle: noIdle, idleAfter: idleWait,
	}, nil
}

// run reads until ctx ends or something fails.
func (r *reader[T]) run(ctx context.Context) error {
	received := make(chan delivery)
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.receive(groupCtx, received) })
	group.Go(func() error { return r.collectBatches(groupCtx, received) })
	return group.Wait() //nolint:wrapcheck // both wrap
}

// delivery is a received message.
type delivery struct {
	*nats.Msg

	// endsResponse: the server drops the messages of the response that follow.
	endsResponse bool
}

// receive forwards messages to received, until the server drops messages, ctx ends or something fails.
func (r *reader[T]) receive(ctx context.Context, received chan<- delivery) error {
	full := jetstreamapi.Pull{
		JetStream: r.cfg.JetStream, Stream: r.cfg.Stream, Consumer: r.consumer.CachedInfo().Name,
		Messages: r.cfg.Batch, Bytes: r.cfg.BatchBytes,
	}
	for {
		next := full
		if r.single > 0 {
			next.Messages = 1
		}
		err := next.Do(ctx, func(m *nats.Msg) error {
			r.single = max(0, r.single-1)
			d := delivery{Msg: m}
			if len(m.Data) == 0 && len(m.Header) == 0 && r.cfg.Consumers.EndsAtEmptyMessage() {
				r.single = singleRequests
				d.endsResponse = next.Messages > 1
			}
			select {
			case received <- d:
			case <-ctx.Done():
				return fmt.Errorf("receive messages: %w", context.Cause(ctx))
			}
			if d.endsResponse {
				return errResponseEnded
			}
			return nil
		})
		if errors.Is(err, errResponseEnded) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// collectBatches collects messages into batches and sends each one to out once it is ready and the
// receiver is free.
func (r *reader[T]) collectBatches(ctx context.Context, received <-chan delivery) error {
	b := &batch[T]{}
	var overflow *delivery // did not fit into the batch
	timer := time.NewTimer(r.idleAfter)
	defer timer.Stop()
	for {
		in, out := received, r.out
		if overflow != nil || b.size() >= r.cfg.Batch || r.responseEnded {
			in = nil
		} else if !r.isReady(b) {
			out = nil
		}
		select {
		case m := <-in:
			if b.size() > 0 && b.bytes+len(m.Data) > r.cfg.BatchBytes {
				overflow = &m
				continue
			}
			if err := r.add(b, m); err != nil {
				return err
			}
			timer.Reset(r.cfg.Linger)
		case out <- b:
			if r.responseEnded {
				return errResponseEnded
			}
			b = &batch[T]{}
			timer.Reset(r.idleAfter)
			if overflow == nil {
				continue
			}
			if err := r.add(b, *overflow); err != nil {
				return err
			}
			overflow = nil
			timer.Reset(r.cfg.Linger)
		case <-timer.C: // Linger has passed, or the reader is idle
			if b.size() > 0 {
				continue
			}
			if err := r.onIdle(ctx); err != nil {
				return err
			}
			timer.Reset(r.idleAfter)
		case <-ctx.Done():
			return fmt.Errorf("read: %w", context.Cause(ctx))
		}
	}
}

// isReady reports whether the batch can be sent now.
func (r *reader[T]) isReady(b *batch[T]) bool {
	return b.size() > 0 && (b.lag == 0 || r.responseEnded || time.Since(b.lastArrival) >= r.cfg.Linger)
}

var (
	// errGap reports messages lost between the server and the reader.
	errGap = errors.New("gap in the consumer sequence")
	// errResponseEnded reports that the reader has sent all messages that it can get. A new reader continues.
	errResponseEnded = errors.New("an empty message ended the response of the server")
)

func (r *reader[T]) add(b *batch[T], received delivery) error {
	meta, err := received.Metadata()
	if err != nil {
		return fmt.Errorf("read a message's metadata: %w", err)
	}
	if meta.Sequence.Consumer != r.lastConsumerSequence+1 {
		return fmt.Errorf("%w: %d follows %d", errGap, meta.Sequence.Consumer, r.lastConsumerSequence)
	}
	r.lastConsumerSequence, r.lastSequence = meta.Sequence.Consumer, meta.Sequence.Stream
	m := Message[T]{
		Subject: received.Subject, Header: received.Header, Data: received.Data,
		Sequence: meta.Sequence.Stream, Stored: meta.Timestamp,
	}
	r.responseEnded = received.endsResponse
	b.last, b.lag, b.bytes, b.lastArrival = m, meta.NumPending, b.bytes+len(m.Data), time.Now()
	if err := r.cfg.Decode(&m); err != nil {
		b.malformed = append(b.malformed, malformed[T]{message: m, err: err})
		if _, isPartly := errors.AsType[*PartlyMalformedError](err); !isPartly {
			return nil // the message goes to DEAD; reading continues
		}
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
