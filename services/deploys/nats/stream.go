package nats

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/cdevent"
	"lockstep.internal/services/deploys/metrics"
	"lockstep.internal/services/deploys/publish"
)

// ackTimeout is the maximum time until an acknowledgement.
const ackTimeout = 10 * time.Second

// Stream is the stream DEPLOYS. It implements [publish.Stream]. It is safe for concurrent use.
type Stream struct {
	JetStream jetstream.JetStream
	Cell      topology.Cell
	// Metrics default to none.
	Metrics *metrics.Metrics
}

// Publish implements [publish.Stream].
func (s *Stream) Publish(f *publish.Fact, expected int64) (publish.Ack, error) {
	if !s.JetStream.Conn().IsConnected() {
		return nil, errors.New("not connected to NATS")
	}
	data, err := f.Encode()
	if err != nil {
		return nil, err
	}
	e, err := cdevent.From(string(s.Cell), f.DeployFact, data)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	if f.TraceParent != "" {
		e.SetExtension(event.TraceParent, f.TraceParent)
	}
	w := &f.Workload
	msg, err := event.Encode(e, s.Cell.Deploy(w.ClusterUID, w.Namespace, w.Kind, w.Name, string(f.Fact)))
	if err != nil {
		return nil, err
	}
	msg.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatInt(expected, 10))
	msg.Header.Set(jetstream.ExpectedLastSubjSeqSubjHeader, s.subjects(f.Workload))
	sentAt := time.Now()
	ack, err := s.JetStream.PublishMsgAsync(msg, jetstream.WithStallWait(ackTimeout))
	if err != nil {
		return nil, fmt.Errorf("publish on %s: %w", msg.Subject, err)
	}
	return func(ctx context.Context) (int64, error) { return s.await(ctx, ack, sentAt) }, nil
}

// await waits for an acknowledgement.
func (s *Stream) await(ctx context.Context, ack jetstream.PubAckFuture, sentAt time.Time) (int64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, ackTimeout, fmt.Errorf("no acknowledgement within %s", ackTimeout))
	defer cancel()
	select {
	case stored := <-ack.Ok():
		s.Metrics.Published(time.Since(sentAt))
		return int64(stored.Sequence), nil
	case err := <-ack.Err():
		if isConflict(err) {
			return 0, publish.ErrConflict
		}
		return 0, fmt.Errorf("publish on %s: %w", ack.Msg().Subject, err)
	case <-ctx.Done():
		return 0, fmt.Errorf("publish on %s: %w", ack.Msg().Subject, context.Cause(ctx))
	}
}

func isConflict(err error) bool {
	apiError, isAPIError := errors.AsType[*jetstream.APIError](err)
	return isAPIError && (apiError.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		apiError.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

// subjects returns the subject filter for all messages about a workload.
func (s *Stream) subjects(w events.Workload) string {
	return s.Cell.DeployAll(w.ClusterUID, w.Namespace, w.Kind, w.Name)
}

func (s *Stream) open(ctx context.Context) (jetstream.Stream, error) {
	stream, err := s.JetStream.Stream(ctx, topology.StreamDeploys)
	if err != nil {
		return nil, fmt.Errorf("open stream %s: %w", topology.StreamDeploys, err)
	}
	return stream, nil
}

// After implements [publish.Stream].
func (s *Stream) After(ctx context.Context, w events.Workload, position int64) ([]publish.Published, error) {
	stream, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	var found []publish.Published
	for {
		m, err := stream.GetMsg(ctx, uint64(position)+1, jetstream.WithGetMsgSubject(s.subjects(w)))
		p, err := decode(m, err)
		if err != nil || p.Position == 0 {
			return found, err
		}
		found, position = append(found, p), p.Position
	}
}

// Newest implements [publish.Stream].
func (s *Stream) Newest(ctx context.Context, w events.Workload) (publish.Published, error) {
	stream, err := s.open(ctx)
	if err != nil {
		return publish.Published{}, err
	}
	return decode(stream.GetLastMsgForSubject(ctx, s.subjects(w)))
}

// At implements [publish.Stream].
func (s *Stream) At(ctx context.Context, position int64) (publish.Published, error) {
	stream, err := s.open(ctx)
	if err != nil {
		return publish.Published{}, err
	}
	return decode(stream.GetMsg(ctx, uint64(position)))
}

// FirstPosition implements [publish.Stream].
func (s *Stream) FirstPosition(ctx context.Context) (int64, error) {
	stream, err := s.open(ctx)
	if err != nil {
		return 0, err
	}
	return int64(stream.CachedInfo().State.FirstSeq), nil
}

// MaxAge implements [publish.Stream].
func (s *Stream) MaxAge() time.Duration {
	for _, stream := range topology.Streams() {
		if stream.Name == topology.StreamDeploys {
			return stream.MaxAge
		}
	}
	return 0
}

// decode decodes a stored message. It returns the zero value if there is none, and only the position of a message that
// is not a fact.
func decode(m *jetstream.RawStreamMsg, err error) (publish.Published, error) {
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return publish.Published{}, nil
	}
	if err != nil {
		return publish.Published{}, fmt.Errorf("read stream %s: %w", topology.StreamDeploys, err)
	}
	p := publish.Published{Position: int64(m.Sequence)}
	e, err := event.Decode(m.Header, m.Data)
	if err != nil {
		return p, nil //nolint:nilerr // a message of another writer
	}
	p.ID = e.ID()
	if fact, err := cdevent.Read(e); err == nil {
		p.DeployFact = fact
	}
	return p, nil
}
