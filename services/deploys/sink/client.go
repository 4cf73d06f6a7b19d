package sink

import (
	"context"
	"io"
	"net/http"
	"time"
)

const (
	dialTimeout    = 10 * time.Second
	keepAlive      = 30 * time.Second
	defaultTimeout = 30 * time.Second
	// maxAnswer bounds what is read of an answer, in bytes: a page of a hundred of the longest comments.
	maxAnswer = 16 << 20
)

// ClientOptions say how a destination is spoken to.
type ClientOptions struct {
	Network NetworkConfig
	// Timeout of one request, waiting for the limiter left out. Defaults to 30 s.
	Timeout time.Duration
	// Limiter that writes wait for, and that is paused by answers with Retry-After. Required.
	Limiter *Limiter
	// NoRedirects gives redirects to the caller instead of following them.
	NoRedirects bool
}

// NewClient makes an HTTP client for one destination. It uses no proxy: through one, the addresses could not be checked. Close its idle connections when it
// is no longer used.
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

// NewTransport is what NewClient sends with.
func NewTransport(o ClientOptions) http.RoundTripper {
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	return &transport{options: o, base: &http.Transport{
		DialContext: o.Network.dialer().DialContext, ForceAttemptHTTP2: true, TLSHandshakeTimeout: dialTimeout,
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
			_ = request.Body.Close() // as a RoundTripper must; nothing was read of it
		}
		return nil, err
	}
	ctx, cancel := context.WithTimeout(request.Context(), t.options.Timeout)
	response, err := t.base.RoundTrip(request.WithContext(ctx))
	if err != nil {
		cancel()
		return nil, err //nolint:wrapcheck // as a RoundTripper must
	}
	response.Body = &answer{Reader: io.LimitReader(response.Body, maxAnswer), body: response.Body, cancel: cancel}
	switch response.StatusCode {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusForbidden:
		if delay, ok := ParseRetryAfter(response.Header, time.Now()); ok {
			limiter.Pause(delay)
		}
	}
	return response, nil
}

// CloseIdleConnections is called by the method of http.Client of that name.
func (t *transport) CloseIdleConnections() { t.base.CloseIdleConnections() }

// answer ends the time-out of its request when it is closed.
type answer struct {
	io.Reader

	body   io.Closer
	cancel context.CancelFunc
}

// Close implements io.Closer.
func (a *answer) Close() error {
	defer a.cancel()
	return a.body.Close() //nolint:wrapcheck // the body's own
}
