package forward

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/copybuffer"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/relay/audit"
	"lockstep.internal/services/relay/policy"
	"lockstep.internal/services/relay/tunnel"
)

// flushInterval of responses with a known length. ReverseProxy flushes others, such as watches, after every write. An
// early flush of a complete response costs another HTTP/2 frame and write.
const flushInterval = 10 * time.Millisecond

// Directory of users and agents; a [directory.Directory].
type Directory interface {
	User(id int64) (directory.User, bool)
	Agent(id int64) (directory.Agent, bool)
	AgentRole(userID, agentID int64) directory.Role
	// Changed is closed at the next change.
	Changed() <-chan struct{}
	// WhenReady is closed once the directory is read.
	WhenReady() <-chan struct{}
}

// Config of a [Handler]. All fields are required, unless they have a default.
type Config struct {
	Authenticator *Authenticator
	Directory     Directory
	// Rules for services; see [Handler.SetRules].
	Rules     []policy.Rule
	Opener    Opener
	Transport *Transport
	Audit     *audit.Log
	// MaxRequests in flight of all callers, MaxRequestsPerCaller of one, and MaxRequestsPerAgent of one to one agent.
	MaxRequests, MaxRequestsPerCaller, MaxRequestsPerAgent int
	// StreamLifetime is the maximum duration of a request. Defaults to [access.DefaultStreamLifetime].
	StreamLifetime time.Duration
	// Refused counts a request above a limit. Optional.
	Refused func(limit string)
	Logger  *slog.Logger
	Now     func() time.Time
}

// Handler forwards callers' requests to agents. It may be used by many goroutines.
type Handler struct {
	cfg       Config
	proxy     *httputil.ReverseProxy
	durations *prometheus.HistogramVec

	mu sync.Mutex
	// inflight has the requests and their cancel functions; perCaller and perAgent count them.
	inflight  map[*proxiedRequest]context.CancelCauseFunc
	perCaller map[policy.Identity]int
	perAgent  map[callerAndAgent]int
	draining  bool
	rules     []policy.Rule
	// changed receives when requests in flight must be authorized again.
	changed chan struct{}
	// idle is closed when the handler is draining and no request is in flight.
	idle     chan struct{}
	idleOnce sync.Once
}

// NewHandler makes a handler for paths that begin with /agents/.
func NewHandler(cfg Config) *Handler {
	if cfg.StreamLifetime == 0 {
		cfg.StreamLifetime = access.DefaultStreamLifetime
	}
	if cfg.Refused == nil {
		cfg.Refused = func(string) {}
	}
	h := &Handler{
		cfg: cfg, inflight: map[*proxiedRequest]context.CancelCauseFunc{}, perCaller: map[policy.Identity]int{},
		perAgent: map[callerAndAgent]int{}, idle: make(chan struct{}), durations: newDurations(), rules: cfg.Rules,
		changed: make(chan struct{}, 1),
	}
	h.proxy = &httputil.ReverseProxy{
		Rewrite: rewrite, Transport: cfg.Transport, BufferPool: copybuffer.Pool{}, FlushInterval: flushInterval,
		ModifyResponse: h.modifyResponse, ErrorHandler: h.handleError,
		ErrorLog: slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelDebug),
	}
	return h
}

// Mux returns a handler that serves paths of agents with h, and all others, which are of the Connect API, with next. It
// traces requests that belong to a trace. Requests wait until the directory is read.
func (h *Handler) Mux(traced func(http.Handler) http.Handler, next http.Handler) http.Handler {
	tracing := traced(h)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		isAPI := !strings.HasPrefix(r.URL.Path, agentsPath)
		switch err := h.awaitDirectory(r); {
		case err != nil && isAPI:
			fault.WriteConnect(w, r, h.cfg.Logger, err)
		case err != nil:
			h.writeError(w, r, err)
		case isAPI:
			next.ServeHTTP(w, r)
		case len(r.Header["Traceparent"]) > 0:
			tracing.ServeHTTP(w, r)
		default:
			h.ServeHTTP(w, r)
		}
	})
}

// awaitDirectory waits until the directory is read. Without it the relay knows neither users nor agents.
func (h *Handler) awaitDirectory(r *http.Request) error {
	ready := h.cfg.Directory.WhenReady()
	select {
	case <-ready:
		return nil
	default:
	}
	protocol := audit.HTTP
	if _, isKubernetes := kubernetesVerb(r); isKubernetes {
		protocol = audit.Kubernetes
	}
	return h.cfg.Opener.AwaitStart(r.Context(), ready, deadlineOf(r, protocol, queryOf(r.URL), h.cfg.Now()))
}

// ServeHTTP authenticates, authorizes and forwards one request. It returns when the response has ended.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p, err := h.authenticateAndParse(r)
	if err != nil {
		h.writeError(w, r, err)
		return
	}
	ctx, cancel := context.WithCancelCause(withRequest(r.Context(), p))
	defer cancel(nil)
	ctx, stop := h.withEnd(ctx, p.caller)
	defer stop()
	if err := h.begin(ctx, p, cancel); err != nil {
		h.writeError(w, r, err)
		return
	}
	defer func() {
		failure := recover() // ReverseProxy panics to abort an incomplete response
		if p.Error == "" {
			p.Error = incompleteReason(context.Cause(ctx), failure != nil)
		}
		h.record(p, audit.Ended)
		h.removeInflight(p) // after the record: a drain waits for both
		if failure != nil {
			panic(failure)
		}
	}()
	h.forward(&responseWriter{ResponseWriter: w, request: p}, r.WithContext(ctx), p)
}

// withEnd returns a context that ends after StreamLifetime, or when the caller's token expires.
func (h *Handler) withEnd(ctx context.Context, caller policy.Caller) (context.Context, context.CancelFunc) {
	end, reason := access.StreamEnd(h.cfg.Now(), h.cfg.StreamLifetime, caller.TokenExpiresAt)
	return context.WithDeadlineCause(ctx, end, reason)
}

// incompleteReason returns why a response was not completed, or an empty string.
func incompleteReason(cause error, aborted bool) string {
	public, ok := errors.AsType[*fault.Error](cause)
	switch {
	case ok:
		return public.Error()
	case aborted && cause != nil:
		return "the caller has gone"
	case aborted:
		return "the response was not completed"
	}
	return ""
}

// authenticateAndParse authenticates the caller and parses the request. A request that it refuses is not
// audited: its caller or its agent is unknown, or its path or a header is invalid.
func (h *Handler) authenticateAndParse(r *http.Request) (*proxiedRequest, error) {
	caller, err := h.cfg.Authenticator.Caller(r.Header)
	if err != nil {
		return nil, err
	}
	parsed, err := parse(r.URL, r.Header)
	if err != nil {
		return nil, err
	}
	return h.newRequest(caller, parsed, r)
}

// begin counts a request as in flight, and waits for capacity for its audit records. A caller that has used up its
// budget of records may not change a cluster: such a request needs a record of its own. Its other requests are
// summed up.
func (h *Handler) begin(ctx context.Context, p *proxiedRequest, cancel context.CancelCauseFunc) error {
	if err := h.addInflight(p, cancel); err != nil {
		return err
	}
	records := 1
	if p.longRunning {
		records = 2
	}
	if p.summedUp = !h.cfg.Audit.Allow(p.Record, records); !p.summedUp {
		err := h.cfg.Audit.Reserve(ctx, records)
		if err != nil {
			h.removeInflight(p)
		}
		return err
	}
	if p.protocol == audit.Kubernetes && !p.readOnly {
		p.Status = http.StatusTooManyRequests
		h.record(p, audit.Ended)
		h.removeInflight(p)
		return fault.New(errcode.ResourceExhausted,
			"you have sent more requests than the audit log records of one caller: send changes more slowly")
	}
	return nil
}

// forward authorizes a request that is in flight, and forwards it.
func (h *Handler) forward(w *responseWriter, r *http.Request, p *proxiedRequest) {
	// The request is in flight already: a later change of the directory cancels it.
	impersonation, err := h.authorize(p)
	if err == nil && p.longRunning {
		h.setGroups(p, impersonation)
		err = h.reauthorize(p) // until now, Run had no groups to compare: check again
	}
	if err != nil {
		if p.longRunning && !p.summedUp {
			h.cfg.Audit.Release(1)
		}
		h.fail(w, r, p, err)
		return
	}
	if p.longRunning {
		h.record(p, audit.Begun)
	}
	p.impersonation = impersonation
	if p.protocol == audit.TCP {
		h.joinTCP(w, r, p)
		return
	}
	control := http.NewResponseController(w)
	if r.ProtoMajor == 1 {
		_ = control.EnableFullDuplex() // a target may respond before it has read the whole request
	}
	if r.Body != nil && r.Body != http.NoBody {
		p.body = &requestBody{ReadCloser: r.Body, request: p}
		r.Body = p.body
		defer func() {
			if p.requestBodyPending() { // unblock the goroutine that copies the request body: it waits for data from the caller
				_ = control.SetReadDeadline(time.Unix(1, 0))
			}
		}()
	}
	h.proxy.ServeHTTP(w, r)
}

// MayRead returns an error if the caller may not read the Kubernetes API of an agent.
func (h *Handler) MayRead(caller policy.Caller, agentID int64) error {
	p := &proxiedRequest{caller: caller, readOnly: true}
	p.requestPath = kubernetesPath(agentID, 0)
	_, err := h.checkPolicy(p)
	return err
}

// Get sends a GET request to the Kubernetes API of an agent, as the caller, and calls read with the response.
// connectionID names one connection of the agent; 0 is any.
func (h *Handler) Get(
	ctx context.Context, caller policy.Caller, agentID, connectionID int64, path, accept string,
	read func(*http.Response) error,
) error {
	to := kubernetesPath(agentID, connectionID)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+to.Target+path, http.NoBody)
	if err != nil {
		return fault.Wrap(err, errcode.InvalidArgument, "build the request to agent %d", agentID)
	}
	request.Header.Set("Accept", accept)
	p, err := h.newRequest(caller, to, request)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(withRequest(ctx, p))
	defer cancel(nil)
	if err := h.begin(ctx, p, cancel); err != nil {
		return err
	}
	defer h.removeInflight(p)
	defer h.record(p, audit.Ended)
	impersonation, err := h.authorize(p)
	if err != nil {
		p.Error = fault.From(err).Error()
		return err
	}
	setImpersonation(request.Header, impersonation)
	response, err := h.cfg.Transport.RoundTrip(request.WithContext(ctx))
	if err != nil {
		err = publicError(ctx, err)
		p.Error = fault.From(err).Error()
		return err
	}
	p.Status = response.StatusCode
	defer response.Body.Close() //nolint:errcheck // it was read, or is not wanted
	return read(response)
}

// record adds an audit record.
func (h *Handler) record(p *proxiedRequest, phase audit.Phase) {
	r := p.Record
	r.Phase = phase
	if phase == audit.Ended {
		r.Duration = h.cfg.Now().Sub(p.StartedAt)
		r.BytesSent, r.BytesReceived = p.sent.Load(), p.received.Load()
		if !p.longRunning {
			h.durations.WithLabelValues(string(p.protocol), statusClass(r.Status)).Observe(r.Duration.Seconds())
		}
	}
	switch {
	case !p.summedUp:
		h.cfg.Audit.Add(r)
	case phase == audit.Ended:
		h.cfg.Audit.Sum(r)
	}
}

// rewrite sets URL, host and headers of the outgoing request.
func rewrite(r *httputil.ProxyRequest) {
	p := requestOf(r.In.Context())
	p.strip(r.Out.URL)
	r.Out.URL.Scheme, r.Out.URL.Host = "http", p.requestPath.Target
	if p.protocol != audit.Kubernetes {
		r.SetXForwarded()
		return
	}
	r.Out.Host = p.requestPath.Target
	for name := range r.Out.Header { // only the relay sets identity headers
		if name == headerAuthorization || strings.HasPrefix(name, "X-Remote-") {
			delete(r.Out.Header, name)
		}
	}
	setImpersonation(r.Out.Header, p.impersonation)
}

func (h *Handler) modifyResponse(response *http.Response) error {
	p := requestOf(response.Request.Context())
	if response.StatusCode == http.StatusSwitchingProtocols {
		p.Status = response.StatusCode // ReverseProxy does not write it with WriteHeader
	} else if p.Verb == verbWatch {
		response.Body = &watchBody{response.Body, response.Request.Context()}
	}
	if response.StatusCode != http.StatusSwitchingProtocols && response.Request.ProtoMajor == 1 && p.requestBodyPending() {
		// Close the caller's connection after this response: its request body is unread.
		response.Header.Set("Connection", "close")
	}
	return nil
}

func (h *Handler) handleError(w http.ResponseWriter, r *http.Request, err error) {
	p := requestOf(r.Context())
	if r.ProtoMajor == 1 && p.requestBodyPending() {
		w.Header().Set("Connection", "close")
	}
	h.fail(w, r, p, publicError(r.Context(), err))
}

func (h *Handler) fail(w http.ResponseWriter, r *http.Request, p *proxiedRequest, err error) {
	p.Error = fault.From(err).Error()
	h.writeError(w, r, err)
}

// publicError explains to the caller why a request has no response.
func publicError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		if cause, ok := context.Cause(ctx).(*fault.Error); ok { //nolint:errorlint // causes of ours are not wrapped
			return cause
		}
		return fault.Wrap(err, errcode.Canceled, "the caller has gone")
	}
	if known, ok := errors.AsType[*fault.Error](err); ok {
		return known
	}
	if reset, ok := errors.AsType[*tunnel.ResetError](err); ok {
		switch reset.Reason {
		case tunnel.Refused:
			return fault.Wrap(err, errcode.PermissionDenied, "the agent refused the request: %s", reset.Text)
		case tunnel.Unreachable:
			return fault.Wrap(err, errcode.Unavailable, "the agent cannot reach the target: %s", reset.Text)
		case tunnel.Cancelled, tunnel.NotAccepted, tunnel.Overloaded, tunnel.TargetConnectionLost:
			return fault.Wrap(err, errcode.Unavailable, "the stream to the target was reset: %s", reset.Text)
		}
	}
	if errors.Is(err, tunnel.ErrClosed) {
		return fault.Wrap(err, errcode.Unavailable,
			"the connection to the agent was lost: the request may have had an effect")
	}
	return fault.Wrap(err, errcode.Unavailable, "no valid response from the target: %v", err)
}
