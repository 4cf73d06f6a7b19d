package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"sync"
	"time"

	"lockstep.internal/services/relay/hub"
	"lockstep.internal/services/relay/route"
	"lockstep.internal/services/relay/tunnel"
)

const (
	// idleTime is how long a stream is kept for a next request.
	idleTime = 30 * time.Second
	// rememberReleased is for how long it is known that a connection is not used any more.
	rememberReleased = 10 * time.Minute
	// maxAge is when a stream is not kept any more: what the agent joins it with may be configured otherwise by now.
	maxAge = time.Minute
	// maxIdle streams that are kept for one target of one agent.
	maxIdle = 256
	// streamBuffer is what requests and responses are read and written through.
	streamBuffer = 4 << 10
	// maxInterim responses before the final one, such as 100 Continue.
	maxInterim = 5
	// maxAnswerHead is the largest head of an answer, with those of interim ones before it.
	maxAnswerHead = 1 << 20
)

// Opener opens streams; see [hub.Hub].
type Opener interface {
	Open(ctx context.Context, attempt *hub.Attempt, to route.Instruction) (*hub.Route, error)
}

// Transport carries HTTP/1.1 requests over streams to agents, and keeps the streams for the next ones. It is made by [NewTransport].
//
// What it promises beyond [http.RoundTripper]: a request of which nothing was taken is tried elsewhere, if its body was not begun to be sent; one that only reads and met a stream which
// the other side has just let go of, or whose tunnel is lost before there is an answer, is sent once more.
type Transport struct {
	hub Opener

	mu   sync.Mutex
	idle map[route.Instruction][]*kept
	// released are connections that are not used any more, and until when that has to be known: streams through them may still be in use.
	released map[int64]time.Time
}

// NewTransport makes one.
func NewTransport(opener Opener) *Transport {
	return &Transport{hub: opener, idle: map[route.Instruction][]*kept{}, released: map[int64]time.Time{}}
}

// kept is a stream that carries one request after the other.
type kept struct {
	*hub.Route

	to     route.Instruction
	opened time.Time
	head   *limit
	reader *bufio.Reader
	writer *bufio.Writer
	timer  *time.Timer
	again  bool // it has carried one before
}

// limit passes on what is read while there is less than may be.
type limit struct {
	io.Reader

	left int
}

// unlimited is for bodies.
const unlimited = math.MaxInt

func (l *limit) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, errHead
	}
	n, err := l.Reader.Read(p[:min(len(p), l.left)])
	if l.left != unlimited {
		l.left -= n
	}
	return n, err //nolint:wrapcheck // io.EOF must be as it is
}

var (
	errHead     = fmt.Errorf("the head of the answer has more than %d bytes", maxAnswerHead)
	errSwitched = errors.New("the target switches protocols, which nobody has asked for")
)

// Way of one request.
type Way struct {
	// To says where it goes.
	To route.Instruction
	// ConnectionID is what it went through last; 0 before it was sent.
	ConnectionID int64
}

type wayKey struct{}

// With says where the request of a context goes, and hears which way it took.
func With(ctx context.Context, way *Way) context.Context {
	return context.WithValue(ctx, wayKey{}, way)
}

// RoundTrip sends a request where its context says.
func (t *Transport) RoundTrip(request *http.Request) (*http.Response, error) {
	way, is := request.Context().Value(wayKey{}).(*Way)
	if !is {
		return nil, errors.New("the request does not say which agent it is for")
	}
	var attempt hub.Attempt
	for {
		k, err := t.take(request.Context(), &attempt, way.To)
		if err != nil {
			return nil, err
		}
		way.ConnectionID = k.Connection.ID
		response, begun, err := t.exchange(request, k)
		if err == nil {
			return response, nil
		}
		if request.Context().Err() != nil || begun || !k.failed(&attempt, err, replayable(request)) {
			return nil, err
		}
	}
}

// failed notes that an attempt led to no answer, and says whether there may be another.
func (k *kept) failed(attempt *hub.Attempt, err error, replayable bool) (again bool) {
	var reset *tunnel.ResetError
	switch {
	case errors.As(err, &reset) && reset.Untaken(), errors.Is(err, tunnel.ErrClosed) && replayable:
		attempt.Failed(k.Route, err)
		return true
	}
	return k.again && errors.Is(err, errNoAnswer) && replayable // it was let go of while the request was on its way
}

// take a stream that is kept, or a new one.
func (t *Transport) take(ctx context.Context, attempt *hub.Attempt, to route.Instruction) (*kept, error) {
	for {
		t.mu.Lock()
		idle := t.idle[to]
		if len(idle) == 0 {
			t.mu.Unlock()
			break
		}
		k := idle[len(idle)-1]
		t.keepOnly(to, idle[:len(idle)-1])
		t.mu.Unlock()
		if k.timer.Stop() && k.Quiet() {
			k.again = true
			return k, nil
		}
		k.Reset(tunnel.Cancelled, "kept for too long")
	}
	r, err := t.hub.Open(ctx, attempt, to)
	if err != nil {
		return nil, err
	}
	head := &limit{r, unlimited}
	return &kept{Route: r, to: to, opened: time.Now(), head: head, reader: bufio.NewReaderSize(head, streamBuffer), writer: bufio.NewWriterSize(r, streamBuffer)}, nil
}

func (t *Transport) keepOnly(to route.Instruction, idle []*kept) {
	if len(idle) == 0 {
		delete(t.idle, to)
	} else {
		t.idle[to] = idle
	}
}

// keep a stream for the next request.
func (t *Transport) keep(k *kept) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, released := t.released[k.Connection.ID]; released || len(t.idle[k.to]) >= maxIdle || time.Since(k.opened) > maxAge {
		k.Reset(tunnel.Cancelled, "not needed any more")
		return
	}
	t.idle[k.to] = append(t.idle[k.to], k)
	if k.timer == nil {
		k.timer = time.AfterFunc(idleTime, func() { t.drop(k) })
	} else {
		k.timer.Reset(idleTime)
	}
}

// Release gives up what is kept of a connection that is not to be used any more.
func (t *Transport) Release(connection int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(t.released, func(_ int64, until time.Time) bool { return now.After(until) })
	t.released[connection] = now.Add(rememberReleased)
	for to, idle := range t.idle {
		rest := idle[:0:0]
		for _, k := range idle {
			if k.Connection.ID != connection {
				rest = append(rest, k)
			} else if k.timer.Stop() {
				k.Reset(tunnel.Cancelled, "the connection is not used any more")
			}
		}
		if len(rest) < len(idle) {
			t.keepOnly(to, rest)
		}
	}
}

// Close gives up all that is kept.
func (t *Transport) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, idle := range t.idle {
		for _, k := range idle {
			if k.timer.Stop() {
				k.Reset(tunnel.Cancelled, "the relay ends")
			}
		}
	}
	clear(t.idle)
}

func (t *Transport) drop(k *kept) {
	t.mu.Lock()
	defer t.mu.Unlock()
	idle := t.idle[k.to]
	for i, other := range idle {
		if other == k {
			t.keepOnly(k.to, append(idle[:i:i], idle[i+1:]...))
			break
		}
	}
	k.Reset(tunnel.Cancelled, "kept for too long")
}

var errNoAnswer = errors.New("the target ended the connection without an answer")

// replayable says whether a request can be sent once more although the target may have had it (RFC 9110, section 9.2.2): nobody has seen an answer to it.
func replayable(request *http.Request) bool {
	switch request.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return request.Header.Get("Upgrade") == ""
	}
	return false
}

// exchange sends the request and reads the head of its response. begun is that some of the request's body may have been sent.
func (t *Transport) exchange(request *http.Request, k *kept) (response *http.Response, begun bool, err error) {
	stop := context.AfterFunc(request.Context(), func() { k.Reset(tunnel.Cancelled, "the caller is gone") })
	sent := make(chan error, 1)
	if request.Body == nil || request.Body == http.NoBody {
		sent <- k.send(request)
	} else {
		begun = true
		go func() { sent <- k.send(request) }()
	}
	response, err = k.receive(request)
	if err != nil {
		stop()
		k.Reset(tunnel.Cancelled, "no answer to a request")
		if begun {
			_ = request.Body.Close()
			select {
			case errSend := <-sent:
				if errSend != nil && !errors.Is(err, errNoAnswer) {
					err = errors.Join(err, errSend)
				}
			default: // it waits for the caller, for whom an answer must not wait
			}
		}
		return nil, begun, err
	}
	b := &body{ReadCloser: response.Body, transport: t, k: k, stop: stop, sent: sent, reusable: !response.Close && !request.Close}
	if response.StatusCode == http.StatusSwitchingProtocols {
		response.Body = &upgraded{body: b}
	} else {
		response.Body = b
	}
	return response, begun, nil
}

func (k *kept) send(request *http.Request) error {
	if err := request.Write(k.writer); err != nil {
		return fmt.Errorf("send the request: %w", err)
	}
	if err := k.writer.Flush(); err != nil {
		return fmt.Errorf("send the request: %w", err)
	}
	return nil
}

// await the first byte of an answer.
func (k *kept) await() error {
	_, err := k.reader.Peek(1)
	var reset *tunnel.ResetError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF):
		return errNoAnswer
	case errors.As(err, &reset) && reset.Reason == tunnel.Broken:
		return fmt.Errorf("%w: %w", errNoAnswer, err)
	}
	return fmt.Errorf("read the answer: %w", err)
}

func (k *kept) receive(request *http.Request) (*http.Response, error) {
	if err := k.await(); err != nil {
		return nil, err
	}
	k.head.left = maxAnswerHead
	defer func() { k.head.left = unlimited }()
	for range maxInterim {
		response, err := http.ReadResponse(k.reader, request)
		if err != nil {
			return nil, fmt.Errorf("read the answer: %w", err)
		}
		switch {
		case response.StatusCode == http.StatusSwitchingProtocols && request.Header.Get("Upgrade") == "":
			return nil, errSwitched // what the caller says next is for the relay, and shows its token
		case response.StatusCode >= http.StatusOK || response.StatusCode == http.StatusSwitchingProtocols:
			return response, nil
		}
	}
	return nil, fmt.Errorf("the target sent more than %d interim answers", maxInterim)
}

// body of a response: with its end, the stream is free for the next request.
type body struct {
	io.ReadCloser

	transport *Transport
	k         *kept
	stop      func() bool
	sent      chan error
	reusable  bool
	over      bool
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !b.over {
		b.over = true
		b.release(errors.Is(err, io.EOF))
	}
	return n, err //nolint:wrapcheck // io.EOF must be as it is
}

func (b *body) Close() error {
	if !b.over {
		b.over = true
		b.release(false)
	}
	return nil
}

func (b *body) release(whole bool) {
	live := b.stop()
	select {
	case err := <-b.sent:
		if whole && live && b.reusable && err == nil && b.k.reader.Buffered() == 0 {
			b.transport.keep(b.k)
			return
		}
	default: // the answer was there before the request was
	}
	if whole {
		_ = b.k.Close()
		return
	}
	b.k.Reset(tunnel.Cancelled, "the caller is gone")
}

// upgraded is the body of a response that switched protocols: both directions of the stream.
type upgraded struct{ *body }

func (u *upgraded) Read(p []byte) (int, error)  { return u.k.reader.Read(p) } //nolint:wrapcheck // the stream's own
func (u *upgraded) Write(p []byte) (int, error) { return u.k.Write(p) }

// CloseWrite ends the direction to the target.
func (u *upgraded) CloseWrite() error { return u.k.CloseWrite() }

func (u *upgraded) Close() error {
	u.stop()
	return u.k.Close()
}
