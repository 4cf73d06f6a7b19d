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

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/retry"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/topology"
)

const (
	retryMin = 50 * time.Millisecond
	retryMax = 5 * time.Second
	// requestTimeout bounds each request to the server.
	requestTimeout = 5 * time.Second
	// heartbeat is the pull heartbeat: the time in which a broken reader is detected.
	heartbeat = 5 * time.Second
)

var (
	errReplaced     = errors.New("the stream was restored or recreated")
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
// It waits for an unavailable server or a missing stream.
func (d *Directory) Run(ctx context.Context, ready func()) error {
	js, err := jetstream.New(d.cfg.Conn)
	if err != nil {
		return fmt.Errorf("directory: %w", err)
	}
	f := &reader{Directory: d, js: js, ready: ready}
	pause := retry.Policy{Min: retryMin, Max: retryMax}.Backoff()
	for ctx.Err() == nil {
		caughtUp, reason := f.follow(ctx)
		if ctx.Err() != nil {
			break
		}
		d.setReadError(ctx, reason)
		if caughtUp {
			pause.Reset()
		}
		_ = pause.Wait(ctx) // it returns an error only when ctx ends
	}
	return nil //nolint:nilerr // it was asked to end
}

// Check is a health check. It fails before the copy is ready, and is degraded when the stream has
// not been read for StaleAfter.
func (d *Directory) Check(context.Context) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	switch {
	case !d.ready && d.readErr != nil:
		return fmt.Errorf("the directory is not loaded yet: %w", d.readErr)
	case !d.ready:
		return errors.New("the directory is not read yet")
	case d.readErr != nil && time.Since(d.since) > d.cfg.StaleAfter:
		return service.Degraded(
			fmt.Errorf("the directory has not been updated for %s: %w", time.Since(d.since).Round(time.Second), d.readErr),
		)
	default:
		return nil
	}
}

func (d *Directory) setReadError(ctx context.Context, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.readErr == nil {
		d.since = time.Now()
	}
	d.readErr = err
	d.cfg.Logger.DebugContext(ctx, "directory reader failed, restarting", slog.Any(logkey.Reason, err))
}

// reader is one call of Run.
type reader struct {
	*Directory

	js      jetstream.JetStream
	ready   func()
	created time.Time // when the stream of the known entries was created
}

// messageID identifies the last read message, to detect a replaced stream.
type messageID struct {
	sequence uint64
	id       string
}

func messageIDOf(header nats.Header, sequence uint64) messageID {
	return messageID{sequence: sequence, id: header.Get("ce-id")}
}

// follow reads the stream until it fails or the connection changes. It reports whether it caught up.
func (f *reader) follow(ctx context.Context) (bool, error) {
	// Subscribe first, so that no status change is missed.
	status := f.cfg.Conn.StatusChanged()
	defer f.cfg.Conn.RemoveStatusListener(status)
	if !f.cfg.Conn.IsConnected() { // a request would only time out
		return false, errDisconnected
	}
	stream, err := f.open(ctx)
	if err != nil {
		return false, err
	}
	// A recreated stream is read into a new copy, which replaces the old one when it is complete.
	info := stream.CachedInfo()
	target := f.known
	if !info.Created.Equal(f.created) && !f.created.IsZero() {
		target = newEntries()
	}
	reading := &reading{reader: f, stream: stream, target: target, created: info.Created}
	return reading.run(ctx, status)
}

func (f *reader) open(ctx context.Context) (jetstream.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	stream, err := f.js.Stream(ctx, topology.StreamDirectory)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, fmt.Errorf("stream %s does not exist: the state service creates it", topology.StreamDirectory)
	}
	if err != nil {
		return nil, fmt.Errorf("open stream %s: %w", topology.StreamDirectory, err)
	}
	return stream, nil
}

// reading is one read of the stream from its start, and of the live messages after it.
type reading struct {
	*reader

	stream   jetstream.Stream
	target   *entries
	created  time.Time
	last     messageID
	caughtUp bool
}

// run reads until the connection changes, the stream was replaced, or reading fails.
func (r *reading) run(ctx context.Context, status <-chan nats.Status) (bool, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	openCtx, cancelOpen := context.WithTimeout(ctx, requestTimeout)
	consumer, err := r.stream.OrderedConsumer(openCtx, jetstream.OrderedConsumerConfig{})
	cancelOpen()
	if err != nil {
		return false, fmt.Errorf("read stream %s: %w", topology.StreamDirectory, err)
	}
	messages, err := consumer.Messages(jetstream.PullHeartbeat(heartbeat))
	if err != nil {
		return false, fmt.Errorf("read stream %s: %w", topology.StreamDirectory, err)
	}
	received := make(chan jetstream.Msg)
	var background sync.WaitGroup
	background.Go(func() { cancel(forward(ctx, messages, received)) })
	// A request in flight gets no response after a disconnect.
	background.Go(func() {
		select {
		case now := <-status:
			cancel(fmt.Errorf("the connection is %s", now))
		case <-ctx.Done():
		}
	})
	err = r.read(ctx, consumer.CachedInfo().NumPending, received)
	messages.Stop()
	cancel(err)
	background.Wait()
	return r.caughtUp, err
}

// forward sends received messages to the channel until the reader ends.
func forward(ctx context.Context, from jetstream.MessagesContext, to chan<- jetstream.Msg) error {
	for {
		m, err := from.Next(jetstream.NextContext(ctx))
		if err != nil {
			return fmt.Errorf("read stream %s: %w", topology.StreamDirectory, err)
		}
		select {
		case to <- m:
		case <-ctx.Done():
			return context.Cause(ctx) //nolint:wrapcheck // the cause that ended the reading
		}
	}
}

func (r *reading) read(ctx context.Context, pending uint64, received <-chan jetstream.Msg) error {
	if pending == 0 {
		r.setCaughtUp()
	}
	probe := time.NewTicker(r.cfg.Probe)
	defer probe.Stop()
	for {
		select {
		case m := <-received:
			if err := r.apply(ctx, m); err != nil {
				return err
			}
		case <-probe.C:
			if err := r.probe(ctx); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx) //nolint:wrapcheck // the cause that ended the reading
		}
	}
}

func (r *reading) apply(ctx context.Context, m jetstream.Msg) error {
	meta, err := m.Metadata()
	if err != nil {
		return fmt.Errorf("read stream %s: %w", topology.StreamDirectory, err)
	}
	revision, err := strconv.ParseInt(m.Headers().Get(topology.RevisionHeader), 10, 64)
	if err != nil {
		revision = noRevision
	}
	r.mu.Lock()
	changed, err := r.target.apply(r.cfg.Cell, m.Subject(), revision, m.Data())
	if changed && r.target == r.known {
		r.notifyChanged()
	}
	r.mu.Unlock()
	switch {
	case errors.Is(err, errUnknownKind):
		r.cfg.Logger.DebugContext(
			ctx, "ignored a directory entry of an unknown kind", slog.String(logkey.Subject, m.Subject()),
		)
	case err != nil:
		r.cfg.Logger.ErrorContext(ctx, "dropped a malformed directory entry", logkey.Error(err))
	}
	r.last = messageIDOf(m.Headers(), meta.Sequence.Stream)
	if meta.NumPending == 0 {
		r.setCaughtUp()
	}
	return nil
}

// notifyChanged wakes the waiters of Changed. The lock must be held.
func (d *Directory) notifyChanged() {
	close(d.changed)
	d.changed = make(chan struct{})
}

// setCaughtUp is called at the end of the stream; later calls do nothing.
func (r *reading) setCaughtUp() {
	if r.caughtUp {
		return
	}
	r.caughtUp = true
	r.reader.created = r.created
	r.mu.Lock()
	first := !r.Directory.ready
	r.Directory.ready, r.readErr = true, nil
	if r.known != r.target {
		r.known = r.target
		r.notifyChanged()
	}
	r.mu.Unlock()
	if first {
		r.ready()
	}
}

// probe checks that the stream still contains the last read message.
func (r *reading) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	info, err := r.stream.Info(ctx)
	if err != nil {
		return fmt.Errorf("read the state of stream %s: %w", topology.StreamDirectory, err)
	}
	if !info.Created.Equal(r.created) || info.State.LastSeq < r.last.sequence {
		return errReplaced
	}
	if r.last.sequence == 0 {
		return nil
	}
	m, err := r.stream.GetMsg(ctx, r.last.sequence)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound): // replaced by a newer message of its subject
		return nil
	case err != nil:
		return fmt.Errorf("read message %d of stream %s: %w", r.last.sequence, topology.StreamDirectory, err)
	case messageIDOf(m.Header, m.Sequence) != r.last:
		return errReplaced
	default:
		return nil
	}
}
