package directory

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/retry"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/topology"
)

const (
	retryMin = 50 * time.Millisecond
	retryMax = 5 * time.Second
	// requestTimeout bounds each question to the server.
	requestTimeout = 5 * time.Second
	// heartbeat is how soon a reader notices that nothing can come any more.
	heartbeat = 5 * time.Second
)

var (
	errOther        = errors.New("the stream is not the one that was read: it was restored or made anew")
	errDisconnected = errors.New("NATS is not connected")
)

// Part runs the copy as a part of a service, named directory, after the part nats.
func (d *Directory) Part() service.Part {
	return service.Part{
		Name: "directory", StartAfter: []string{"nats"}, Check: d.Check,
		Run: func(ctx context.Context, self *service.Handle) error { return d.Run(ctx, self.Ready) },
	}
}

// Run keeps the copy until ctx is done, and calls ready once it has caught up for the first time.
// It waits for a server or a stream that is away.
func (d *Directory) Run(ctx context.Context, ready func()) error {
	js, err := jetstream.New(d.cfg.Conn)
	if err != nil {
		return fmt.Errorf("directory: %w", err)
	}
	f := &follower{Directory: d, js: js, ready: ready}
	pause := retry.Policy{Min: retryMin, Max: retryMax}.Backoff()
	for ctx.Err() == nil {
		caughtUp, reason := f.follow(ctx)
		if ctx.Err() != nil {
			break
		}
		d.disturbed(ctx, reason)
		if caughtUp {
			pause.Reset()
		}
		_ = pause.Wait(ctx) // it fails with the context only
	}
	return nil //nolint:nilerr // it was asked to end
}

// Check is a health check. It fails before the copy is ready, and is degraded when the stream has
// not been read for StaleAfter.
func (d *Directory) Check(context.Context) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	switch {
	case !d.ready && d.trouble != nil:
		return fmt.Errorf("the directory is not read yet: %w", d.trouble)
	case !d.ready:
		return errors.New("the directory is not read yet")
	case d.trouble != nil && time.Since(d.since) > d.cfg.StaleAfter:
		return service.Degraded(
			fmt.Errorf("the directory is as of %s ago: %w", time.Since(d.since).Round(time.Second), d.trouble),
		)
	default:
		return nil
	}
}

func (d *Directory) disturbed(ctx context.Context, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.trouble == nil {
		d.since = time.Now()
	}
	d.trouble = err
	d.cfg.Logger.DebugContext(ctx, "the directory is read again", slog.Any("reason", err))
}

// follower is one run of the copy.
type follower struct {
	*Directory

	js      jetstream.JetStream
	ready   func()
	created time.Time // of the stream that the knowledge is of
}

// mark is a message that was read, to be recognized.
type mark struct {
	sequence uint64
	id       string
}

func markOf(header nats.Header, sequence uint64) mark {
	return mark{sequence: sequence, id: header.Get("ce-id")}
}

// follow reads the stream from its start until something changes or fails, and says whether it
// caught up.
func (f *follower) follow(ctx context.Context) (bool, error) {
	// Asked for first: what happens to the connection from here on ends this reading.
	status := f.cfg.Conn.StatusChanged()
	defer f.cfg.Conn.RemoveStatusListener(status)
	if !f.cfg.Conn.IsConnected() { // a request would only time out
		return false, errDisconnected
	}
	stream, err := f.open(ctx)
	if err != nil {
		return false, err
	}
	// A stream made anew is read beside what is known, and takes its place when it is whole.
	info := stream.CachedInfo()
	target := f.known
	if !info.Created.Equal(f.created) && !f.created.IsZero() {
		target = newKnowledge()
	}
	reading := &reading{follower: f, stream: stream, target: target, created: info.Created}
	return reading.run(ctx, status)
}

func (f *follower) open(ctx context.Context) (jetstream.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	stream, err := f.js.Stream(ctx, topology.StreamDirectory)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, fmt.Errorf("stream %s is not there: the service state makes it", topology.StreamDirectory)
	}
	if err != nil {
		return nil, fmt.Errorf("open stream %s: %w", topology.StreamDirectory, err)
	}
	return stream, nil
}

// reading is one pass over the stream and what follows on it.
type reading struct {
	*follower

	stream   jetstream.Stream
	target   *knowledge
	created  time.Time
	last     mark
	caughtUp bool
}

// run reads until the connection changes, the stream turns out to be another one, or reading fails.
func (r *reading) run(ctx context.Context, status <-chan nats.Status) (bool, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	opening, opened := context.WithTimeout(ctx, requestTimeout)
	consumer, err := r.stream.OrderedConsumer(opening, jetstream.OrderedConsumerConfig{})
	opened()
	if err != nil {
		return false, fmt.Errorf("read stream %s: %w", topology.StreamDirectory, err)
	}
	messages, err := consumer.Messages(jetstream.PullHeartbeat(heartbeat))
	if err != nil {
		return false, fmt.Errorf("read stream %s: %w", topology.StreamDirectory, err)
	}
	received := make(chan jetstream.Msg)
	var beside sync.WaitGroup
	beside.Go(func() { cancel(pass(ctx, messages, received)) })
	// A question that is under way when the connection breaks has no answer.
	beside.Go(func() {
		select {
		case now := <-status:
			cancel(fmt.Errorf("the connection is %s", now))
		case <-ctx.Done():
		}
	})
	err = r.read(ctx, consumer.CachedInfo().NumPending, received)
	messages.Stop()
	cancel(err)
	beside.Wait()
	return r.caughtUp, err
}

// pass hands messages on until there are no more to come.
func pass(ctx context.Context, from jetstream.MessagesContext, to chan<- jetstream.Msg) error {
	for {
		m, err := from.Next(jetstream.NextContext(ctx))
		if err != nil {
			return fmt.Errorf("read stream %s: %w", topology.StreamDirectory, err)
		}
		select {
		case to <- m:
		case <-ctx.Done():
			return context.Cause(ctx) //nolint:wrapcheck // says what ended the reading
		}
	}
}

func (r *reading) read(ctx context.Context, pending uint64, received <-chan jetstream.Msg) error {
	if pending == 0 {
		r.whole()
	}
	probe := time.NewTicker(r.cfg.Probe)
	defer probe.Stop()
	for {
		select {
		case m := <-received:
			if err := r.take(ctx, m); err != nil {
				return err
			}
		case <-probe.C:
			if err := r.probe(ctx); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx) //nolint:wrapcheck // says what ended the reading
		}
	}
}

func (r *reading) take(ctx context.Context, m jetstream.Msg) error {
	meta, err := m.Metadata()
	if err != nil {
		return fmt.Errorf("read stream %s: %w", topology.StreamDirectory, err)
	}
	revision, err := strconv.ParseInt(m.Headers().Get(topology.RevisionHeader), 10, 64)
	if err != nil {
		revision = unnumbered
	}
	r.mu.Lock()
	news, err := r.target.take(r.cfg.Cell, m.Subject(), revision, m.Data())
	if news && r.target == r.known {
		r.announce()
	}
	r.mu.Unlock()
	switch {
	case errors.Is(err, errUnknownKind):
		r.cfg.Logger.DebugContext(
			ctx, "the directory has what this version does not know", slog.String("subject", m.Subject()),
		)
	case err != nil:
		r.cfg.Logger.ErrorContext(ctx, "an entry of the directory is malformed and not counted", slog.Any("error", err))
	}
	r.last = markOf(m.Headers(), meta.Sequence.Stream)
	if meta.NumPending == 0 {
		r.whole()
	}
	return nil
}

// announce tells those who wait for a change. The lock must be held.
func (d *Directory) announce() {
	close(d.changed)
	d.changed = make(chan struct{})
}

// whole is called at the end of the stream, perhaps again and again.
func (r *reading) whole() {
	if r.caughtUp {
		return
	}
	r.caughtUp = true
	r.follower.created = r.created
	r.mu.Lock()
	first := !r.Directory.ready
	r.Directory.ready, r.trouble = true, nil
	if r.known != r.target {
		r.known = r.target
		r.announce()
	}
	r.mu.Unlock()
	if first {
		r.ready()
	}
}

// probe looks whether the stream still has what was read of it.
func (r *reading) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	info, err := r.stream.Info(ctx)
	if err != nil {
		return fmt.Errorf("look at stream %s: %w", topology.StreamDirectory, err)
	}
	if !info.Created.Equal(r.created) || info.State.LastSeq < r.last.sequence {
		return errOther
	}
	if r.last.sequence == 0 {
		return nil
	}
	m, err := r.stream.GetMsg(ctx, r.last.sequence)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound): // a later one of its subject has taken its place
		return nil
	case err != nil:
		return fmt.Errorf("look at stream %s: %w", topology.StreamDirectory, err)
	case markOf(m.Header, m.Sequence) != r.last:
		return errOther
	default:
		return nil
	}
}
