package lastvalue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
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
	retryMax = 2 * time.Second
	// openTimeout bounds the first request about the stream. Nobody answers while the servers elect a leader, so it must
	// soon be sent again.
	openTimeout = 2 * time.Second
	// requestTimeout bounds each other request to the server.
	requestTimeout = 5 * time.Second

	defaultProbe      = 5 * time.Second
	defaultStaleAfter = 30 * time.Second
)

var (
	errMissing      = errors.New("it does not exist; the state service creates it")
	errReplaced     = errors.New("it was restored or recreated")
	errDisconnected = errors.New("NATS is not connected")
)

// Config of a [Reader].
type Config struct {
	// JetStream has a connection that reconnects for ever, and any API prefix. Required.
	JetStream jetstream.JetStream
	// Stream is the stream's name. Required.
	Stream string
	// Subjects matches the messages to read. Required.
	Subjects string
	// Live matches the subjects to which the server republishes them. Required.
	Live string
	// Handler receives the messages. Required.
	Handler Handler
	// Logger. Required.
	Logger *slog.Logger
	// Probe is the time between two checks of the stream. Defaults to 5 s.
	Probe time.Duration
	// StaleAfter is the time without the stream after which [Reader.Check] reports it. Defaults to 30 s.
	StaleAfter time.Duration
}

// Handler receives what a [Reader] reads. One goroutine calls its methods.
type Handler interface {
	// Begin is called before the stream is read from its start. If another stream was read before, replaced is true:
	// what follows replaces all of it once Loaded is called.
	Begin(replaced bool)
	// Apply is called for each message, in stream order.
	Apply(ctx context.Context, m Message)
	// Loaded is called when all messages that were stored at Begin are applied.
	Loaded()
}

// Message is a stored message.
type Message struct {
	Subject  string
	Header   nats.Header
	Data     []byte
	Sequence uint64
}

// NoRevision is the revision of messages without one.
const NoRevision = -1

// Revision returns the message's revision, see [topology.RevisionHeader], or [NoRevision].
func (m Message) Revision() int64 {
	revision, err := strconv.ParseInt(m.Header.Get(topology.RevisionHeader), 10, 64)
	if err != nil {
		return NoRevision
	}
	return revision
}

// Reader reads one stream. It is safe for concurrent use; Run is called once.
type Reader struct {
	cfg Config

	created time.Time // of the stream that was loaded last; used by Run only

	mu     sync.Mutex
	loaded bool      // once
	err    error     // the error that stops the reading, or nil
	since  time.Time // the time of err
}

// NewReader returns a reader; Run starts it.
func NewReader(cfg Config) *Reader {
	if cfg.Probe == 0 {
		cfg.Probe = defaultProbe
	}
	if cfg.StaleAfter == 0 {
		cfg.StaleAfter = defaultStaleAfter
	}
	return &Reader{cfg: cfg, since: time.Now()}
}

// Run reads until ctx is done, and calls ready once the stream is loaded for the first time. It waits for an
// unavailable server or a missing stream.
func (r *Reader) Run(ctx context.Context, ready func()) {
	first := sync.OnceFunc(ready)
	pause := retry.Policy{Min: retryMin, Max: retryMax}.Backoff()
	for ctx.Err() == nil {
		f := &following{Reader: r, ready: first}
		err := f.run(ctx)
		if ctx.Err() != nil {
			return
		}
		r.fail(ctx, err)
		if f.complete {
			pause.Reset()
		}
		_ = pause.Wait(ctx) // it returns an error only when ctx ends
	}
}

// Ready reports whether the stream was loaded once.
func (r *Reader) Ready() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.loaded
}

// UpToDate reports whether the stream is loaded and followed without errors.
func (r *Reader) UpToDate() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.loaded && r.err == nil
}

// Check is a health check. It fails before the stream is loaded, and is degraded when it has not been read for
// StaleAfter.
func (r *Reader) Check(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !r.loaded && r.err != nil:
		return fmt.Errorf("stream %s is not loaded yet: %w", r.cfg.Stream, r.err)
	case !r.loaded:
		return fmt.Errorf("stream %s is not loaded yet", r.cfg.Stream)
	case r.err != nil && time.Since(r.since) > r.cfg.StaleAfter:
		return service.Degraded(fmt.Errorf(
			"stream %s has not been read for %s: %w", r.cfg.Stream, time.Since(r.since).Round(time.Second), r.err,
		))
	default:
		return nil
	}
}

func (r *Reader) fail(ctx context.Context, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.since = time.Now()
	}
	r.err = err
	r.cfg.Logger.DebugContext(ctx, "reader of a stream failed, restarting",
		slog.String(logkey.Stream, r.cfg.Stream), slog.Any(logkey.Reason, err))
}

// following is one reading of the stream from its start, and of what is stored after it.
type following struct {
	*Reader

	ready    func()
	stream   jetstream.Stream
	last     messageID // the message that was applied last
	complete bool      // the load is complete
}

// messageID identifies a message, to detect a replaced stream.
type messageID struct {
	sequence uint64
	id       string
}

func messageIDOf(header nats.Header, sequence uint64) messageID {
	return messageID{sequence: sequence, id: header.Get("ce-id")}
}

// run reads until the connection changes, the stream was replaced, or reading fails.
func (f *following) run(ctx context.Context) error {
	conn := f.cfg.JetStream.Conn()
	// Listen first, so that no change is missed.
	status := conn.StatusChanged()
	defer conn.RemoveStatusListener(status)
	if !conn.IsConnected() { // a request would only time out
		return errDisconnected
	}
	var background sync.WaitGroup
	defer background.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// A request in flight gets no response after a disconnect.
	background.Go(func() {
		select {
		case now := <-status:
			cancel(fmt.Errorf("the connection is %s", now))
		case <-ctx.Done():
		}
	})
	err := f.follow(ctx)
	if cause := context.Cause(ctx); cause != nil {
		return cause //nolint:wrapcheck // the cause that ended the reading
	}
	return err
}

// follow subscribes before it loads: what is stored in between is announced.
func (f *following) follow(ctx context.Context) error {
	var announced announcement
	announced.arrived = make(chan struct{}, 1)
	subscription, err := f.cfg.JetStream.Conn().Subscribe(f.cfg.Live, announced.receive)
	if err != nil {
		return fmt.Errorf("subscribe to %s: %w", f.cfg.Live, err)
	}
	defer subscription.Unsubscribe() //nolint:errcheck // fails only on a closed connection
	if err := f.load(ctx); err != nil {
		return err
	}
	probe := time.NewTicker(f.cfg.Probe)
	defer probe.Stop()
	for {
		select {
		case <-announced.arrived:
			err = f.advance(ctx, announced.sequence.Swap(0))
		case <-probe.C:
			err = f.probe(ctx)
		case <-ctx.Done():
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// announcement is the highest sequence that was republished since it was read last.
type announcement struct {
	sequence atomic.Uint64
	arrived  chan struct{}
}

func (a *announcement) receive(m *nats.Msg) {
	sequence, err := strconv.ParseUint(m.Header.Get(jetstream.SequenceHeader), 10, 64)
	if err != nil {
		return
	}
	for known := a.sequence.Load(); sequence > known; known = a.sequence.Load() {
		if a.sequence.CompareAndSwap(known, sequence) {
			break
		}
	}
	select {
	case a.arrived <- struct{}{}:
	default: // The reader has not read the one before.
	}
}

// load applies the whole stream.
func (f *following) load(ctx context.Context) error {
	requestCtx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	var err error
	f.stream, err = f.cfg.JetStream.Stream(requestCtx, f.cfg.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return errMissing
	}
	if err != nil {
		return fmt.Errorf("open it: %w", err)
	}
	info := f.stream.CachedInfo()
	f.cfg.Handler.Begin(!f.created.IsZero() && !info.Created.Equal(f.created))
	if err := f.advance(ctx, info.State.LastSeq); err != nil {
		return err
	}
	f.cfg.Handler.Loaded()
	f.complete, f.created = true, info.Created
	f.mu.Lock()
	f.loaded, f.err = true, nil
	f.mu.Unlock()
	f.ready()
	return nil
}

// probe checks that the stream still contains the message that was applied last, and applies those that were not
// announced.
func (f *following) probe(ctx context.Context) error {
	requestCtx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	info, err := f.stream.Info(requestCtx)
	if err != nil {
		return fmt.Errorf("read its state: %w", err)
	}
	if !info.Created.Equal(f.created) || info.State.LastSeq < f.last.sequence {
		return errReplaced
	}
	if f.last.sequence > 0 {
		m, err := f.stream.GetMsg(requestCtx, f.last.sequence)
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound): // a newer message of its subject has replaced it
		case err != nil:
			return fmt.Errorf("read message %d: %w", f.last.sequence, err)
		case messageIDOf(m.Header, m.Sequence) != f.last:
			return errReplaced
		}
	}
	return f.advance(ctx, info.State.LastSeq)
}
