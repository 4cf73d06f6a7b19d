package forward

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"time"

	"lockstep.internal/libs/cellmap"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/router/route"
)

const (
	// startTimeout bounds the time for the start of a body, if only it has the token.
	startTimeout = 30 * time.Second
	// maxStarts bounds the memory for starts that clients are sending: 32 MiB.
	maxStarts = 1024
	// flushInterval is how long a part of a response of known length waits for the next part.
	flushInterval = 10 * time.Millisecond
	// retryAfter is the value of the header Retry-After, in seconds.
	retryAfter = "5"
	// pseudonym of routers in the header Via.
	pseudonym = "lockstep-router"
)

// Cells is the cell map; a [cellmap.Map].
type Cells interface {
	route.Map

	// Ready reports whether the map was loaded once.
	Ready() bool
	// Check returns an error if the map has not been read for a while.
	Check(ctx context.Context) error
	HasCells() bool
	// Changed is closed at the next change.
	Changed() <-chan struct{}
}

// Config of a [Handler]. All fields are required, unless they have a default.
type Config struct {
	Cells Cells
	// TLS for cells with https. Defaults to the system's CAs.
	TLS *tls.Config
	// MaxRequestsPerCell in progress.
	MaxRequestsPerCell int
	Breaker            BreakerConfig
	// BodyTimeout is the time for each part of a body.
	BodyTimeout time.Duration
	// ResponseTimeout is the time until a response begins, after the whole request was sent.
	ResponseTimeout time.Duration
	// Propagate sets the headers of a trace. Optional.
	Propagate func(ctx context.Context, header http.Header)
	Logger    *slog.Logger
}

// Handler sends requests to their cells. It may be used by many goroutines. It is a [prometheus.Collector].
type Handler struct {
	cfg       Config
	table     *route.Table
	upstreams *upstreams
	metrics   *metrics
	proxy     *httputil.ReverseProxy
	// starts has one element for each body whose start is being read.
	starts chan struct{}
}

// NewHandler makes a handler for all paths. Call [Handler.Run].
func NewHandler(cfg Config) *Handler {
	if cfg.TLS == nil {
		cfg.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	m := newMetrics()
	h := &Handler{
		cfg: cfg, table: route.NewTable(cfg.Cells), upstreams: newUpstreams(cfg, m), metrics: m,
		starts: make(chan struct{}, maxStarts),
	}
	h.proxy = h.newProxy()
	return h
}

// Run closes the connections to cells that leave the map, until ctx is done, and then all that are not used.
func (h *Handler) Run(ctx context.Context) {
	defer h.upstreams.close()
	h.upstreams.follow(ctx, h.cfg.Cells)
}

// ServeHTTP forwards one request. It returns when the response has ended.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p := &proxiedRequest{startedAt: time.Now(), protoMajor: r.ProtoMajor, body: h.newBody(w, r)}
	if p.body != nil {
		limited := *r // the server looks at the body of its own request
		limited.Body = p.body
		r = &limited
	}
	defer func() { h.metrics.count(p.cell, p.result) }()
	cell, err := h.cell(r, p)
	switch {
	case err != nil:
		h.fail(w, r, p, err)
	case cell.RedirectURL != "":
		p.result = redirected
		w.Header().Set("Location", strings.TrimSuffix(cell.RedirectURL, "/")+requestURI(r.URL))
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(http.StatusTemporaryRedirect)
	default:
		h.forward(w, r, p, cell)
	}
}

// requestURI returns path and query as the client sent them.
func requestURI(u *url.URL) string {
	if u.RawQuery == "" {
		return u.EscapedPath()
	}
	return u.EscapedPath() + "?" + u.RawQuery
}

func (h *Handler) newBody(w http.ResponseWriter, r *http.Request) *body {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	return &body{ReadCloser: r.Body, control: http.NewResponseController(w), timeout: h.cfg.BodyTimeout}
}

// cell returns the cell of a request.
func (h *Handler) cell(r *http.Request, p *proxiedRequest) (cellmap.Cell, error) {
	if err := check(r); err != nil {
		p.result = invalid
		return cellmap.Cell{}, err
	}
	if !h.cfg.Cells.Ready() {
		p.result = unknown
		return cellmap.Cell{}, fault.New(errcode.Unavailable, "the router does not know the cells yet: try again later")
	}
	token, err := h.token(r, p)
	if err != nil {
		return cellmap.Cell{}, err
	}
	cell, err := h.table.Decide(token, h.current(r.Context()))
	p.cell = cell.Name
	switch {
	case err == nil:
	case fault.Is(err, errcode.PermissionDenied):
		p.result = refused
	case cell.Name != "":
		p.result = maintenance
	default:
		p.result = unknown
	}
	return cell, err
}

// current reports whether what is not in the map does not exist. A map without cells was lost.
func (h *Handler) current(ctx context.Context) bool {
	return h.cfg.Cells.Check(ctx) == nil && h.cfg.Cells.HasCells()
}

// check returns a fault about a request that cannot be forwarded.
func check(r *http.Request) error {
	switch {
	case !strings.HasPrefix(r.URL.Path, "/") || r.Method == http.MethodConnect:
		return fault.New(errcode.InvalidArgument, "the target of the request is no path")
	case len(r.Header["Upgrade"]) > 0 && !strings.EqualFold(r.Header.Get("Upgrade"), "h2c"):
		return fault.New(errcode.Unimplemented, "the router forwards HTTP only: connections cannot be upgraded")
	}
	for _, via := range r.Header["Via"] {
		if strings.Contains(via, pseudonym) {
			return fault.New(errcode.Unavailable,
				"the request came from a router: the URL of the cell must be that of the cell")
		}
	}
	return nil
}

// token returns the token of a request. It reads the start of the body only if no header has it for certain.
func (h *Handler) token(r *http.Request, p *proxiedRequest) (string, error) {
	token, final := route.FromHeader(r.Header)
	if final {
		return token, nil
	}
	if r.Method == http.MethodDelete {
		if inQuery := route.FromQuery(r.URL.RawQuery); inQuery != "" {
			return inQuery, nil
		}
	}
	contentType := r.Header.Get("Content-Type")
	if p.body == nil || !route.HasToken(contentType) || r.Header.Get("Content-Encoding") != "" {
		return token, nil
	}
	select {
	case h.starts <- struct{}{}:
		defer func() { <-h.starts }()
	default:
		p.result = limited
		return "", fault.New(errcode.Unavailable, "too many requests send their token in the body: try again later")
	}
	start, err := p.body.start(startTimeout)
	if err != nil {
		p.result = canceled
		return "", bodyFault(err)
	}
	p.start, p.started = start, true
	if inBody := route.FromBody(contentType, start); inBody != "" {
		return inBody, nil
	}
	return token, nil
}

// bodyFault explains that a body did not arrive.
func bodyFault(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fault.Wrap(err, errcode.DeadlineExceeded, "the body of the request did not arrive in time")
	}
	return fault.Wrap(err, errcode.InvalidArgument, "the body of the request is not complete: send the request again")
}

// fail writes an error.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, p *proxiedRequest, err error) {
	if p.closesConnection() {
		w.Header().Set("Connection", "close")
	}
	h.cfg.Logger.DebugContext(r.Context(), "request not forwarded", slog.String(logkey.Cell, string(p.cell)),
		slog.String(logkey.Reason, string(p.result)), logkey.Error(err))
	if fault.Is(err, errcode.Unavailable) {
		w.Header().Set("Retry-After", retryAfter)
	}
	if p.result == canceled && fault.Is(err, errcode.DeadlineExceeded) {
		fault.WriteHTTPStatus(w, r, h.cfg.Logger, http.StatusRequestTimeout, err)
		return
	}
	fault.WriteHTTP(w, r, h.cfg.Logger, err)
}

// proxiedRequest is one request in progress.
type proxiedRequest struct {
	startedAt  time.Time
	protoMajor int   // of HTTP
	body       *body // nil without one

	// Owned by the goroutine of ServeHTTP.
	cell     topology.Cell // empty if the request has none in the map
	result   result
	start    []byte // of the body, until it is sent
	started  bool   // the client sends its body
	upstream *upstream
}

// closesConnection reports whether the connection of the client serves no other request: a part of the body is unread,
// and its cell has, or had, the body. Before that, the server discards the rest.
func (p *proxiedRequest) closesConnection() bool {
	return p.protoMajor == 1 && p.upstream != nil && p.body != nil && p.body.pending()
}
