package proxy

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/relay/audit"
	"lockstep.internal/services/relay/policy"
	"lockstep.internal/services/relay/tunnel"
)

// Directory is what is asked of users and agents; a [directory.Directory].
type Directory interface {
	User(id int64) (directory.User, bool)
	Agent(id int64) (directory.Agent, bool)
	AgentRole(userID, agentID int64) directory.Role
	Changed() <-chan struct{}
}

// Config of a [Handler]. All is required but what says so.
type Config struct {
	Authenticator *Authenticator
	Directory     Directory
	// Rules of services.
	Rules     []policy.Rule
	Opener    Opener
	Transport *Transport
	Audit     *audit.Log
	// StallTimeout is how long a caller may read nothing of a large answer. Defaults to [DefaultStallTimeout].
	StallTimeout time.Duration
	// MaxRequests of all callers together and MaxRequestsPerCaller of one of them that may be under way.
	MaxRequests, MaxRequestsPerCaller int
	Logger                            *slog.Logger
	Now                               func() time.Time
}

// Handler carries callers' requests to agents. It is made by [NewHandler].
type Handler struct {
	cfg       Config
	proxy     *httputil.ReverseProxy
	durations *prometheus.HistogramVec

	mu sync.Mutex
	// visits are the requests that are under way, and under how many there are of each caller.
	visits map[*visit]context.CancelCauseFunc
	under  map[policy.Caller]int
	// draining is that they are to end, and idle is closed when there are no more.
	draining bool
	idle     chan struct{}
	ended    sync.Once
}

// NewHandler makes a handler for paths that begin with /agents/.
func NewHandler(cfg Config) *Handler {
	if cfg.StallTimeout == 0 {
		cfg.StallTimeout = DefaultStallTimeout
	}
	h := &Handler{cfg: cfg, under: map[policy.Caller]int{}, visits: map[*visit]context.CancelCauseFunc{}, idle: make(chan struct{}), durations: newDurations()}
	h.proxy = &httputil.ReverseProxy{
		Rewrite: rewrite, Transport: cfg.Transport, BufferPool: buffers{}, FlushInterval: -1, ModifyResponse: h.answered, ErrorHandler: h.failed,
		ErrorLog: slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelDebug),
	}
	return h
}

// ServeHTTP serves one request to its end.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v, err := h.admit(r)
	if err != nil {
		h.answer(w, r, err)
		return
	}
	ctx, cancel := context.WithCancelCause(context.WithValue(With(r.Context(), &v.way), visitKey{}, v))
	defer cancel(nil)
	if err := h.enter(v, cancel); err != nil { // too many are no fact about an agent, and have no record
		h.answer(w, r, err)
		return
	}
	records := 1
	if v.lasts {
		records = 2
	}
	if err := h.cfg.Audit.Reserve(r.Context(), records); err != nil {
		h.leave(v)
		h.answer(w, r, err)
		return
	}
	defer func() {
		failure := recover() // the proxy's way to end an answer that cannot be completed
		if v.Error == "" {
			v.Error = unfinished(context.Cause(ctx), failure != nil)
		}
		h.record(v, audit.Ended)
		h.leave(v) // who drains the relay waits for the record, too
		if failure != nil {
			panic(failure)
		}
	}()
	h.carry(&answer{ResponseWriter: w, visit: v, stall: h.cfg.StallTimeout}, r.WithContext(ctx), v)
}

// unfinished says why an answer was not completed.
func unfinished(cause error, broken bool) string {
	cut, ours := errors.AsType[*fault.Error](cause)
	switch {
	case ours:
		return cut.Error()
	case broken && cause != nil:
		return "the caller has gone"
	case broken:
		return "the answer was not completed"
	}
	return ""
}

// carry a request that has entered to where it goes.
func (h *Handler) carry(w *answer, r *http.Request, v *visit) {
	// The directory is asked once the request can be given up: a change of it is either seen here, or gives it up.
	as, err := h.admitted(v)
	if err == nil && v.lasts {
		h.settle(v, as)
		err = h.mayGoOn(v)
	}
	if err != nil {
		if v.lasts {
			h.cfg.Audit.Release(1)
		}
		h.refuse(w, r, v, err)
		return
	}
	if v.lasts {
		h.record(v, audit.Begun)
	}
	v.as = impersonation{as}
	if v.protocol == audit.TCP {
		h.connect(w, r, v)
		return
	}
	control := http.NewResponseController(w)
	if r.ProtoMajor == 1 {
		_ = control.EnableFullDuplex() // a target may answer before it has all
	}
	if r.Body != nil && r.Body != http.NoBody {
		v.body = &sentBody{ReadCloser: r.Body, visit: v}
		r.Body = v.body
		defer func() {
			if v.unread() { // who sends it on must not be waited for: it waits for the caller
				_ = control.SetReadDeadline(time.Unix(1, 0))
			}
		}()
	}
	h.proxy.ServeHTTP(w, r)
}

// admit knows the caller and what it asks for. What it refuses has no record: nobody knows who asked, or of which agent.
func (h *Handler) admit(r *http.Request) (*visit, error) {
	caller, err := h.cfg.Authenticator.Caller(r.Header)
	if err != nil {
		return nil, err
	}
	at, err := parse(r.URL, r.Header)
	if err != nil {
		return nil, err
	}
	return h.visit(caller, at, askedBy(r))
}

// asked is what matters of a request for whether it may be made.
type asked struct {
	method, path string
	upgrades     bool
	// watches and follows say that the query asks for that.
	watches, follows bool
	// pretends is the header by which the caller would appear in a cluster as somebody; none is allowed.
	pretends string
}

func askedBy(r *http.Request) asked {
	query := r.URL.Query()
	a := asked{method: r.Method, path: r.URL.Path, upgrades: r.Header.Get("Upgrade") != "", watches: said(query, "watch"), follows: said(query, "follow")}
	for name := range r.Header {
		if strings.HasPrefix(name, "Impersonate-") {
			a.pretends = name
		}
	}
	return a
}

func (h *Handler) visit(caller policy.Caller, at address, a asked) (*visit, error) {
	if _, found := h.cfg.Directory.Agent(at.AgentID); !found {
		return nil, fault.New(errcode.NotFound, "agent %d does not exist", at.AgentID)
	}
	v := &visit{
		caller: caller, address: at, way: Way{To: at.Instruction},
		lasts: a.upgrades || at.protocol == audit.TCP, reads: !a.upgrades && (a.method == http.MethodGet || a.method == http.MethodHead),
		Record: audit.Record{
			RequestID: uuid.NewString(), UserID: caller.UserID, Subject: caller.Subject, AgentID: at.AgentID, Target: at.Target, Protocol: at.protocol,
			Method: a.method, Path: strings.TrimPrefix(a.path, at.prefix), StartedAt: h.cfg.Now(),
		},
	}
	if at.protocol == audit.Kubernetes {
		v.pretends = a.pretends
		// A path with nothing between two slashes is another one to who takes one of them away.
		v.reads = v.reads && !strings.Contains(v.Path, "//")
		if v.Verb, v.Resource = audit.Describe(a.method, v.Path, a.watches); v.Verb != "" {
			v.Path = ""
		}
		v.lasts = v.lasts || v.Verb == verbWatch || a.follows
		v.reads = v.reads && v.Resource.Subresource != "proxy"
	}
	return v, nil
}

// said reads a yes or no of a query as the Kubernetes API does: whatever is there is a yes, but for two ways to say no.
func said(query url.Values, name string) bool {
	values, is := query[name]
	return is && values[0] != "0" && !strings.EqualFold(values[0], "false")
}

// authorize says whether the caller may do what it asks for, as things are now, and as whom it does it.
func (h *Handler) authorize(v *visit) (policy.Impersonation, error) {
	agent, found := h.cfg.Directory.Agent(v.address.AgentID)
	what := policy.Access{AgentID: v.address.AgentID, ProjectID: agent.ProjectID, Target: v.address.Target, Reads: v.reads}
	var role directory.Role
	caller := v.caller
	switch {
	case !found:
		return policy.Impersonation{}, fault.New(errcode.NotFound, "agent %d does not exist", v.address.AgentID)
	case caller.UserID == 0:
		if err := policy.Service(caller, h.cfg.Rules, what); err != nil {
			return policy.Impersonation{}, err
		}
	default:
		user, known := h.cfg.Directory.User(caller.UserID)
		if !known || user.Blocked {
			return policy.Impersonation{}, fault.New(errcode.PermissionDenied, "user %d is blocked or does not exist any more", caller.UserID)
		}
		caller.Admin = caller.Admin && user.Admin
		role = h.cfg.Directory.AgentRole(caller.UserID, v.address.AgentID)
		if err := policy.User(caller, role, what); err != nil {
			return policy.Impersonation{}, err
		}
	}
	if v.pretends != "" {
		return policy.Impersonation{}, fault.New(errcode.PermissionDenied, "as whom you appear in the cluster is said by the relay: send no header %s", v.pretends)
	}
	return policy.Impersonate(caller, role), nil
}

// admitted says whether the request may be made now, and as whom.
func (h *Handler) admitted(v *visit) (policy.Impersonation, error) {
	as, err := h.authorize(v)
	if err != nil {
		return as, err
	}
	if agent, found := h.cfg.Directory.Agent(v.address.AgentID); found && agent.Revoked {
		return as, fault.New(errcode.FailedPrecondition, "agent %d is revoked", v.address.AgentID)
	}
	return as, nil
}

// Before serves what is for agents, and has the rest served by others. Requests that belong to a trace are traced.
func (h *Handler) Before(traced func(http.Handler) http.Handler, others http.Handler) http.Handler {
	tracing := traced(h)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !strings.HasPrefix(r.URL.Path, root):
			others.ServeHTTP(w, r)
		case len(r.Header["Traceparent"]) > 0:
			tracing.ServeHTTP(w, r)
		default:
			h.ServeHTTP(w, r)
		}
	})
}

// record what is known of a request by now.
func (h *Handler) record(v *visit, phase audit.Phase) {
	r := v.Record
	r.Phase, r.ConnectionID = phase, v.way.ConnectionID
	if phase == audit.Ended {
		r.Duration, r.BytesSent, r.BytesReceived = h.cfg.Now().Sub(v.StartedAt), v.sent.Load(), v.received.Load()
		if !v.lasts {
			h.durations.WithLabelValues(string(v.protocol), class(r.Status)).Observe(r.Duration.Seconds())
		}
	}
	h.cfg.Audit.Add(r)
}

// rewrite makes the request for the target of that of the caller.
func rewrite(p *httputil.ProxyRequest) {
	v := visitOf(p.In.Context())
	v.strip(p.Out.URL)
	p.Out.URL.Scheme, p.Out.URL.Host = "http", v.address.Target
	if v.protocol == audit.Kubernetes {
		p.Out.Host = v.address.Target
		for name := range p.Out.Header { // who the caller is says the relay alone
			if name == headerAuthorization || strings.HasPrefix(name, "X-Remote-") {
				delete(p.Out.Header, name)
			}
		}
		v.as.set(p.Out.Header)
		return
	}
	p.SetXForwarded()
}

// answered is told of each answer.
func (h *Handler) answered(response *http.Response) error {
	v := visitOf(response.Request.Context())
	v.flows = response.ContentLength < 0 || response.ContentLength > stallSize
	if conn, is := response.Body.(*upgraded); is {
		response.Body = &exchanged{conn, v}
		v.Status = response.StatusCode // it is not written as others are
	} else if v.Verb == verbWatch {
		response.Body = &watched{response.Body, response.Request.Context()}
	}
	if response.StatusCode != http.StatusSwitchingProtocols && response.Request.ProtoMajor == 1 && v.unread() {
		response.Header.Set("Connection", "close") // the caller's, not the target's
	}
	return nil
}

const verbWatch = "watch"

// failed is told of a request that has no answer.
func (h *Handler) failed(w http.ResponseWriter, r *http.Request, err error) {
	v := visitOf(r.Context())
	if r.ProtoMajor == 1 && v.unread() {
		w.Header().Set("Connection", "close")
	}
	h.refuse(w, r, v, reason(r.Context(), err))
}

func (h *Handler) refuse(w http.ResponseWriter, r *http.Request, v *visit, err error) {
	v.Error = fault.From(err).Error()
	h.answer(w, r, err)
}

// reason why a request has no answer, for its caller.
func reason(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		if cut, is := context.Cause(ctx).(*fault.Error); is { //nolint:errorlint // a cause of ours is given as it is
			return cut
		}
		return fault.Wrap(err, errcode.Canceled, "the caller has gone")
	}
	if known, ok := errors.AsType[*fault.Error](err); ok {
		return known
	}
	if reset, ok := errors.AsType[*tunnel.ResetError](err); ok {
		switch reset.Reason {
		case tunnel.Refused:
			return fault.Wrap(err, errcode.PermissionDenied, "the agent refuses: %s", reset.Text)
		case tunnel.Unreachable:
			return fault.Wrap(err, errcode.Unavailable, "the agent cannot reach it: %s", reset.Text)
		case tunnel.Cancelled, tunnel.Elsewhere, tunnel.Overloaded, tunnel.Broken:
			return fault.Wrap(err, errcode.Unavailable, "the agent gave the request up: %s", reset.Text)
		}
	}
	if errors.Is(err, tunnel.ErrClosed) {
		return fault.Wrap(err, errcode.Unavailable, "the connection to the agent was lost; whether the request had an effect is not known")
	}
	return fault.Wrap(err, errcode.Unavailable, "the target gave no answer: %v", err)
}

// copyBuffer is what bodies are copied through.
const copyBuffer = 32 << 10

var bodies = sync.Pool{New: func() any { return make([]byte, copyBuffer) }}

// buffers for the proxy.
type buffers struct{}

func (buffers) Get() []byte  { return bodies.Get().([]byte) } //nolint:errcheck,forcetypeassert // there are no others
func (buffers) Put(b []byte) { bodies.Put(b) }                //nolint:staticcheck // a slice header more or less
