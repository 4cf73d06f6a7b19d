package forward

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"time"

	"lockstep.internal/services/relay/connections"
	"lockstep.internal/services/relay/route"
	"lockstep.internal/services/relay/tunnel"
)

const (
	// streamBuffer is the size of the read and write buffers of a stream.
	streamBuffer = 4 << 10
	// maxInterim responses before the final one, such as 100 Continue.
	maxInterim = 5
	// maxResponseHead is the largest head of a response, including its interim responses, in bytes.
	maxResponseHead = 1 << 20
)

// Opener opens streams to agents; see [connections.Pool].
type Opener interface {
	AwaitStart(ctx context.Context, ready <-chan struct{}, deadline time.Time) error
	Open(ctx context.Context, state *connections.RetryState, to route.Destination) (*connections.Stream, error)
	AwaitAnswer(state *connections.RetryState, on *connections.Stream, to route.Destination, wait func() error) error
}

// Transport is an [http.RoundTripper] that sends HTTP/1.1 requests over streams to agents. It may be used by many
// goroutines. It sends a request again if [route.AfterFailure] allows it.
type Transport struct {
	opener Opener
	pool   streamPool
}

// NewTransport makes a transport.
func NewTransport(opener Opener) *Transport {
	return &Transport{opener: opener, pool: newStreamPool()}
}

// Evict closes idle streams of a connection that is no longer used, and pools no more of them.
func (t *Transport) Evict(connectionID int64) { t.pool.evict(connectionID) }

// Close closes idle streams.
func (t *Transport) Close() { t.pool.close() }

// RoundTrip sends a request of a [Handler]. It records the connection that the request was last sent through, and
// counts the bytes of the response.
func (t *Transport) RoundTrip(request *http.Request) (*http.Response, error) {
	p := requestOf(request.Context())
	if p == nil {
		return nil, errors.New("the request is not from a Handler")
	}
	state := connections.RetryState{Deadline: p.deadline, Agent: p.agent.String()}
	for {
		s, err := t.open(request, &state, p)
		if err != nil {
			return nil, err
		}
		p.ConnectionID = s.Connection.ID
		response, err := t.exchange(request, &state, p, s)
		if err == nil {
			return response, nil
		}
		if errors.Is(err, connections.ErrSilent) {
			t.pool.evict(s.Connection.ID)
		}
		r := route.RetryConditions{Replayable: isReplayable(request), HasBody: hasBody(request)}
		if request.Context().Err() != nil || !state.RecordFailure(s.Stream, err, failureOf(err, s.reused), r) {
			return nil, err
		}
	}
}

// open returns a stream for the request. A request that may be repeated takes a pooled one. Any other gets a stream of
// its own, which the agent has accepted: the request is sent only to a replica that responds.
func (t *Transport) open(
	request *http.Request, state *connections.RetryState, p *proxiedRequest,
) (*pooledStream, error) {
	var opened *connections.Stream
	var err error
	repeatable := isRepeatable(request)
	if repeatable {
		if s := t.pool.get(p.Destination); s != nil {
			return s, nil
		}
		opened, err = t.opener.Open(request.Context(), state, p.Destination)
	} else {
		opened, err = openAccepted(request.Context(), t.opener, state, p)
	}
	if err != nil {
		return nil, err
	}
	head := &headLimit{opened, unlimited}
	return &pooledStream{
		Stream: opened, to: p.Destination, opened: time.Now(), head: head, repeatable: repeatable,
		reader: bufio.NewReaderSize(head, streamBuffer), writer: bufio.NewWriterSize(opened, streamBuffer),
	}, nil
}

// openAccepted opens a stream to the target of a request, and waits until the agent has accepted it. Nothing of the
// request is sent before, so it may try several connections.
func openAccepted(
	ctx context.Context, opener Opener, state *connections.RetryState, p *proxiedRequest,
) (*connections.Stream, error) {
	for {
		stream, err := opener.Open(ctx, state, p.Destination)
		if err != nil {
			return nil, err
		}
		p.ConnectionID = stream.Connection.ID
		stop := context.AfterFunc(ctx, func() { stream.Reset(tunnel.Cancelled, "the caller has gone") })
		err = opener.AwaitAnswer(state, stream, p.Destination, stream.WaitAccepted)
		stop()
		if err == nil {
			return stream, nil
		}
		r := route.RetryConditions{Replayable: true}
		if ctx.Err() != nil || !state.RecordFailure(stream, err, failureOf(err, false), r) {
			return nil, err
		}
	}
}

// exchange sends the request and reads the head of its response.
func (t *Transport) exchange(
	request *http.Request, state *connections.RetryState, p *proxiedRequest, s *pooledStream,
) (response *http.Response, err error) {
	stop := context.AfterFunc(request.Context(), func() { s.Reset(tunnel.Cancelled, "the caller has gone") })
	var sent chan error // receives the result of send; nil without a body, when send has returned
	if hasBody(request) {
		sent = make(chan error, 1)
		go func() { sent <- s.send(request) }()
	} else {
		err = s.send(request)
	}
	errSend := err
	if s.repeatable {
		err = t.opener.AwaitAnswer(state, s.Stream, p.Destination, s.awaitResponse)
	} else {
		err = s.awaitResponse()
	}
	if err == nil {
		response, err = s.receive(request)
	}
	if err != nil {
		stop()
		s.Reset(tunnel.Cancelled, "the request has no response")
		if sent != nil {
			_ = request.Body.Close()
			select {
			case errSend = <-sent:
			default: // the sender may block on the caller; do not wait for it
			}
		}
		if sent != nil && errSend != nil && !errors.Is(err, errNoResponse) {
			err = errors.Join(err, errSend)
		}
		return nil, err
	}
	b := &responseBody{
		ReadCloser: response.Body, request: p, pool: &t.pool, stream: s, stop: stop, sent: sent,
		reusable: s.repeatable && errSend == nil && !response.Close && !request.Close,
	}
	if response.StatusCode == http.StatusSwitchingProtocols {
		response.Body = &upgradedStream{b}
	} else {
		response.Body = b
	}
	return response, nil
}

func (s *pooledStream) send(request *http.Request) error {
	if err := request.Write(s.writer); err != nil {
		return fmt.Errorf("send the request: %w", err)
	}
	if err := s.writer.Flush(); err != nil {
		return fmt.Errorf("send the request: %w", err)
	}
	return nil
}

var (
	errNoResponse   = errors.New("the target closed the connection without a response")
	errHeadTooLarge = fmt.Errorf("the head of the response has more than %d bytes", maxResponseHead)
	errSwitched     = errors.New("the target sent 101 without an Upgrade request")
)

// receive reads the head of the final response.
func (s *pooledStream) receive(request *http.Request) (*http.Response, error) {
	s.head.left = maxResponseHead
	defer func() { s.head.left = unlimited }()
	for range maxInterim {
		response, err := http.ReadResponse(s.reader, request)
		if err != nil {
			return nil, fmt.Errorf("read the response: %w", err)
		}
		switch {
		case response.StatusCode == http.StatusSwitchingProtocols && request.Header.Get("Upgrade") == "":
			return nil, errSwitched // otherwise the caller's next request, including its token, would be sent to the target
		case response.StatusCode >= http.StatusOK || response.StatusCode == http.StatusSwitchingProtocols:
			return response, nil
		}
	}
	return nil, fmt.Errorf("the target sent more than %d interim responses", maxInterim)
}

// awaitResponse waits for the first byte of a response.
func (s *pooledStream) awaitResponse() error {
	_, err := s.reader.Peek(1)
	var reset *tunnel.ResetError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF):
		return errNoResponse
	case errors.As(err, &reset) && reset.Reason == tunnel.TargetConnectionLost:
		return fmt.Errorf("%w: %w", errNoResponse, err)
	}
	return fmt.Errorf("read the response: %w", err)
}

// headLimit bounds how much a reader reads.
type headLimit struct {
	io.Reader

	left int
}

// unlimited is for bodies.
const unlimited = math.MaxInt

func (l *headLimit) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, errHeadTooLarge
	}
	n, err := l.Reader.Read(p[:min(len(p), l.left)])
	if l.left != unlimited {
		l.left -= n
	}
	return n, err //nolint:wrapcheck // io.EOF must not be wrapped
}

// responseBody counts the bytes of a response, and returns the stream to the pool when it ends.
type responseBody struct {
	io.ReadCloser

	request *proxiedRequest
	pool    *streamPool
	stream  *pooledStream
	stop    func() bool
	sent    chan error
	// reusable reports whether the stream can be reused.
	reusable, ended bool
}

func (b *responseBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.request.received.Add(int64(n))
	if err != nil && !b.ended {
		b.ended = true
		b.release(errors.Is(err, io.EOF))
	}
	return n, err //nolint:wrapcheck // io.EOF must not be wrapped
}

func (b *responseBody) Close() error {
	if !b.ended {
		b.ended = true
		b.release(false)
	}
	return nil
}

func (b *responseBody) release(complete bool) {
	notCancelled := b.stop()
	reusable := complete && notCancelled && b.reusable && b.stream.reader.Buffered() == 0
	if b.sent != nil {
		select {
		case err := <-b.sent:
			reusable = reusable && err == nil
		default: // the response came before the end of the request
			reusable = false
		}
	}
	switch {
	case reusable:
		b.pool.put(b.stream)
	case complete:
		_ = b.stream.Close()
	default:
		b.stream.Reset(tunnel.Cancelled, "the response was not read to its end")
	}
}

// upgradedStream is the body of a 101 response: both directions of the stream. It counts their bytes.
type upgradedStream struct{ *responseBody }

func (u *upgradedStream) Read(p []byte) (int, error) {
	n, err := u.stream.reader.Read(p)
	u.request.received.Add(int64(n))
	return n, err //nolint:wrapcheck // the stream's own
}

func (u *upgradedStream) Write(p []byte) (int, error) {
	n, err := u.stream.Write(p)
	u.request.sent.Add(int64(n))
	return n, err
}

// CloseWrite ends the direction to the target.
func (u *upgradedStream) CloseWrite() error { return u.stream.CloseWrite() }

func (u *upgradedStream) Close() error {
	u.stop()
	return u.stream.Close()
}
