package forward

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"lockstep.internal/libs/cellmap"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/topology"
)

const (
	// connectTimeout bounds a connection to a cell, and then its TLS handshake.
	connectTimeout = 5 * time.Second
	// idleTimeout of connections to cells. It is shorter than that of a listener of ours, so that a request seldom meets a
	// connection that its cell is closing.
	idleTimeout = time.Minute
	// maxIdle is the number of idle connections to one cell.
	maxIdle = 256
	// continueTimeout is how long a body waits for the cell, if its client waits for 100 Continue.
	continueTimeout = 5 * time.Second
	// maxResponseHeader is the largest header of a response, in bytes.
	maxResponseHeader = 64 << 10
	// aliveAfter is the time after which a request counts as a success of its cell if its connection is not lost: a
	// request for a job waits for minutes, and an upload takes as long.
	aliveAfter = 5 * time.Second
)

// upstream is one cell: its connections, its limit and its circuit breaker.
type upstream struct {
	// Static after construction.
	name      topology.Cell
	url       string // as in the map
	target    *url.URL
	transport http.RoundTripper
	breaker   *gobreaker.TwoStepCircuitBreaker[struct{}]
	limit     int64

	inflight atomic.Int64
	retired  atomic.Bool
}

// BreakerConfig configures the circuit breakers of cells.
type BreakerConfig struct {
	// Failures in a row that open a breaker: connections that cannot be opened or are lost. Responses are no failures.
	Failures int
	// Open is how long it stays open. Then one request tries whether the cell is back.
	Open time.Duration
}

func newUpstream(
	cell cellmap.Cell, cfg Config, transport http.RoundTripper, changed func(topology.Cell, gobreaker.State),
) (*upstream, error) {
	target, err := url.Parse(cell.URL)
	if err != nil {
		return nil, fmt.Errorf("the URL of cell %s is invalid: %w", cell.Name, err)
	}
	return &upstream{
		name: cell.Name, url: cell.URL, target: target, limit: int64(cfg.MaxRequestsPerCell), transport: transport,
		breaker: gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
			Name: string(cell.Name), MaxRequests: 1, Timeout: cfg.Breaker.Open,
			ReadyToTrip: func(counts gobreaker.Counts) bool {
				return int64(counts.ConsecutiveFailures) >= int64(cfg.Breaker.Failures)
			},
			IsExcluded: func(err error) bool { return errors.Is(err, errClient) },
			OnStateChange: func(_ string, _, to gobreaker.State) {
				changed(cell.Name, to)
			},
		}),
	}, nil
}

// newTransport returns the connections to one cell. They use HTTP/1.1: a body whose cell does not read it delays no
// other request.
func newTransport(secure *tls.Config, responseTimeout time.Duration) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Transport{
		DialContext:            (&net.Dialer{Timeout: connectTimeout, KeepAlive: idleTimeout}).DialContext,
		TLSClientConfig:        secure.Clone(),
		TLSHandshakeTimeout:    connectTimeout,
		Protocols:              protocols,
		MaxIdleConns:           maxIdle,
		MaxIdleConnsPerHost:    maxIdle,
		IdleConnTimeout:        idleTimeout,
		ResponseHeaderTimeout:  responseTimeout,
		ExpectContinueTimeout:  continueTimeout,
		MaxResponseHeaderBytes: maxResponseHeader,
		DisableCompression:     true,
	}
}

// errClient marks an error that the client caused: it says nothing about the cell.
var errClient = errors.New("the client did not complete its request")

// acquire takes one of the requests of the cell until release is called. It returns false above the limit.
func (u *upstream) acquire() bool {
	if u.inflight.Add(1) > u.limit {
		u.inflight.Add(-1)
		return false
	}
	return true
}

func (u *upstream) release() {
	u.inflight.Add(-1)
	if u.retired.Load() {
		u.closeIdle()
	}
}

// retire closes connections as soon as they are not used.
func (u *upstream) retire() {
	u.retired.Store(true)
	u.closeIdle()
}

func (u *upstream) closeIdle() {
	if transport, ok := u.transport.(interface{ CloseIdleConnections() }); ok {
		transport.CloseIdleConnections()
	}
}

// open reports whether the circuit breaker refuses requests.
func (u *upstream) open() bool { return u.breaker.State() == gobreaker.StateOpen }

// roundTrip sends a request unless the breaker is open, and reports to the breaker. clientFailed reports whether the
// client did not complete its request.
func (u *upstream) roundTrip(r *http.Request, clientFailed func() bool) (*http.Response, error) {
	done, err := u.breaker.Allow()
	if err != nil {
		return nil, err //nolint:wrapcheck // compared by the caller
	}
	var once sync.Once
	report := func(err error) { once.Do(func() { done(err) }) }
	var alive atomic.Pointer[time.Timer]
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
		timer := time.AfterFunc(aliveAfter, func() { report(nil) })
		if previous := alive.Swap(timer); previous != nil {
			previous.Stop()
		}
	}}
	response, err := u.transport.RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), trace)))
	if timer := alive.Load(); timer != nil {
		timer.Stop()
	}
	if err != nil && (r.Context().Err() != nil || clientFailed()) {
		report(errClient)
		return nil, err //nolint:wrapcheck // compared by the caller
	}
	report(err)
	return response, err //nolint:wrapcheck // compared by the caller
}

// upstreams are the cells that got requests. It is safe for concurrent use.
type upstreams struct {
	cfg     Config
	metrics *metrics

	mu    sync.RWMutex
	known map[topology.Cell]*upstream
}

func newUpstreams(cfg Config, m *metrics) *upstreams {
	return &upstreams{cfg: cfg, metrics: m, known: map[topology.Cell]*upstream{}}
}

// get returns a cell. A cell with another URL than before is a new one.
func (u *upstreams) get(cell cellmap.Cell) (*upstream, error) {
	u.mu.RLock()
	found := u.known[cell.Name]
	u.mu.RUnlock()
	if found != nil && found.url == cell.URL {
		return found, nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	found = u.known[cell.Name]
	if found != nil && found.url == cell.URL {
		return found, nil
	}
	created, err := newUpstream(cell, u.cfg, newTransport(u.cfg.TLS, u.cfg.ResponseTimeout), u.breakerChanged)
	if err != nil {
		return nil, err
	}
	if found != nil {
		found.retire()
	}
	u.known[cell.Name] = created
	return created, nil
}

// breakerChanged logs a change of a breaker. The breaker is locked.
func (u *upstreams) breakerChanged(name topology.Cell, to gobreaker.State) {
	logger := u.cfg.Logger.With(slog.String(logkey.Cell, string(name)))
	switch to {
	case gobreaker.StateOpen:
		u.metrics.opened(name)
		logger.Warn("the cell does not answer, refusing its requests", slog.Duration(logkey.RetryIn, u.cfg.Breaker.Open))
	case gobreaker.StateHalfOpen:
		logger.Info("trying whether the cell answers")
	case gobreaker.StateClosed:
		logger.Info("the cell answers again")
	}
}

// follow removes the cells that are not in the map any more, until ctx is done.
func (u *upstreams) follow(ctx context.Context, cells Cells) {
	for ctx.Err() == nil {
		changed := cells.Changed()
		u.prune(cells)
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

func (u *upstreams) prune(cells Cells) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for name, known := range u.known {
		if cell, found := cells.Cell(name); !found || cell.URL != known.url {
			known.retire()
			delete(u.known, name)
			if !found {
				u.metrics.remove(name)
			}
		}
	}
}

// close closes all connections that are not used.
func (u *upstreams) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, known := range u.known {
		known.retire()
	}
}

// all returns the cells that got requests.
func (u *upstreams) all() []*upstream {
	u.mu.RLock()
	defer u.mu.RUnlock()
	list := make([]*upstream, 0, len(u.known))
	for _, known := range u.known {
		list = append(list, known)
	}
	return list
}
