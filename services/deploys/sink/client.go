package sink

import (
	"context"
	"io"
	"net"
	"net/http"
	"time"

	"lockstep.internal/libs/egress"
)

const (
	tlsTimeout     = 10 * time.Second
	defaultTimeout = 30 * time.Second
	// maxResponse is the maximum number of bytes read of a response. It fits a page of 100 of the longest comments.
	maxResponse = 16 << 20
)

// ClientOptions configure the HTTP client of a destination.
type ClientOptions struct {
	Network egress.Config
	// Timeout of one request, without the wait for the limiter. Defaults to 30 s.
	Timeout time.Duration
	// Limiter delays writes. A Retry-After header of a response pauses it. Required.
	Limiter *Limiter
	// Dial replaces the dialer that checks the addresses of Network. For tests without a network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// NoRedirects makes the client return redirects instead of following them.
	NoRedirects bool
}

// NewClient returns an HTTP client for one destination. It uses no proxy, because a proxy would
// hide the addresses that Network checks. The caller closes its idle connections.
func NewClient(o ClientOptions) *http.Client {
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	client := &http.Client{Transport: NewTransport(o)}
	if o.NoRedirects {
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	}
	return client
}

// NewTransport returns the transport of NewClient.
func NewTransport(o ClientOptions) http.RoundTripper {
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.Dial == nil {
		o.Dial = o.Network.Dialer().DialContext
	}
	return &transport{options: o, base: &http.Transport{
		DialContext: o.Dial, ForceAttemptHTTP2: true, TLSHandshakeTimeout: tlsTimeout,
		MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 256 << 10,
	}}
}

type transport struct {
	options ClientOptions
	base    *http.Transport
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	limiter := t.options.Limiter
	wait := limiter.Wait
	if request.Method == http.MethodGet || request.Method == http.MethodHead {
		wait = limiter.AwaitPause
	}
	if err := wait(request.Context()); err != nil {
		if request.Body != nil {
			_ = request.Body.Close() // A RoundTripper must close it.
		}
		return nil, err
	}
	ctx, cancel := context.WithTimeout(request.Context(), t.options.Timeout)
	response, err := t.base.RoundTrip(request.WithContext(ctx))
	if err != nil {
		cancel()
		return nil, err //nolint:wrapcheck // A RoundTripper returns errors as they are.
	}
	response.Body = &responseBody{Reader: io.LimitReader(response.Body, maxResponse), body: response.Body, cancel: cancel}
	switch response.StatusCode {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusForbidden:
		if delay, ok := egress.ParseRetryAfter(response.Header, time.Now()); ok {
			limiter.Pause(delay)
		}
	}
	return response, nil
}

// CloseIdleConnections implements the method that http.Client calls.
func (t *transport) CloseIdleConnections() { t.base.CloseIdleConnections() }

// responseBody ends the timeout of its request on Close.
type responseBody struct {
	io.Reader

	body   io.Closer
	cancel context.CancelFunc
}

// Close implements io.Closer.
func (b *responseBody) Close() error {
	defer b.cancel()
	return b.body.Close() //nolint:wrapcheck // The error of the wrapped body.
}
