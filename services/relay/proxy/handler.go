package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/relay/audit"
	"lockstep.internal/services/relay/policy"
	"lockstep.internal/services/relay/route"
	"lockstep.internal/services/relay/tunnel"
)

// Directory is what is asked of users and agents; a [directory.Directory].
type Directory interface {
	User(id int64) (directory.User, bool)
	Agent(id int64) (directory.Agent, bool)
	AgentRole(userID, agentID int64) directory.Role
	Changed() <-chan struct{}
}

// Config of a [Handler]. All is required.
type Config struct {
	Authenticator *Authenticator
	Directory     Directory
	// Rules of services.
	Rules     []policy.Rule
	Opener    Opener
	Transport *Transport
	Audit     *audit.Log
	// MaxRequests of all callers together and MaxRequestsPerCaller of one of them that may be under way.
	MaxRequests, MaxRequestsPerCaller int
	Logger                            *slog.Logger
	Now                               func() time.Time
}

// Handler carries callers' requests to agents. It is made by [NewHandler].
type Handler struct {
	cfg   Config
	proxy *httputil.ReverseProxy

	mu sync.Mutex
	// under are the requests that are under way, by caller.
	under map[policy.Caller]int
	count int
	// lasting are those that last.
	lasting map[*visit]context.CancelCauseFunc
	// draining is that they are to end, and idle is closed when there are no more.
	draining bool
	idle     chan struct{}
	ended    sync.Once
}

// NewHandler makes a handler for paths that begin with /agents/.
func NewHandler(cfg Config) *Handler {
	h := &Handler{cfg: cfg, under: map[policy.Caller]int{}, lasting: map[*visit]context.CancelCauseFunc{}, idle: make(chan struct{})}
	h.proxy = &httputil.ReverseProxy{
		Rewrite: rewrite, Transport: cfg.Transport, BufferPool: buffers{}, ModifyResponse: h.answered, ErrorHandler: h.failed,
		ErrorLog: slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelDebug),
	}
	return h
}

// ServeHTTP serves one request to its end.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v, err := h.admit(r)
	if err != nil {
		fault.WriteHTTP(w, r, h.cfg.Logger, err)
		return
	}
	records := 1
	if v.lasts {
		records = 2
	}
	if err := h.cfg.Audit.Reserve(r.Context(), records); err != nil {
		fault.WriteHTTP(w, r, h.cfg.Logger, err)
		return
	}
	out := &answer{ResponseWriter: w, visit: v, now: h.cfg.Now}
	if err := h.enter(v); err != nil {
		if v.lasts {
			h.cfg.Audit.Release(1)
		}
		h.refuse(out, r, v, err)
		h.record(v, audit.Ended)
		return
	}
	ctx, cancel := context.WithCancelCause(context.WithValue(With(r.Context(), &v.way), visitKey{}, v))
	defer cancel(nil)
	if v.lasts {
		h.record(v, audit.Begun)
		h.follow(v, cancel)
	}
	defer func() {
		failure := recover() // the proxy's way to end an answer that cannot be completed
		h.leave(v)
		if failure != nil && v.Error == "" {
			v.Error = "the answer was not completed"
		}
		h.record(v, audit.Ended)
		if failure != nil {
			panic(failure)
		}
	}()
	r = r.WithContext(ctx)
	if v.protocol == audit.TCP {
		h.connect(out, r, v)
		return
	}
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &sentBody{r.Body, v}
	}
	h.proxy.ServeHTTP(out, r)
}

// May says whether the caller may read the Kubernetes API of an agent.
func (h *Handler) May(caller policy.Caller, agentID int64) error {
	_, err := h.authorize(&visit{caller: caller, address: address{Instruction: route.Instruction{AgentID: agentID, Target: route.KubernetesAPI}}, reads: true})
	return err
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
	return h.visit(caller, at, r)
}

func (h *Handler) visit(caller policy.Caller, at address, r *http.Request) (*visit, error) {
	agent, found := h.cfg.Directory.Agent(at.AgentID)
	if !found {
		return nil, fault.New(errcode.NotFound, "agent %d does not exist", at.AgentID)
	}
	upgrade := r.Header.Get("Upgrade") != ""
	v := &visit{
		caller: caller, address: at, project: agent.ProjectID, way: Way{To: at.Instruction},
		lasts: upgrade || at.protocol == audit.TCP, reads: !upgrade && (r.Method == http.MethodGet || r.Method == http.MethodHead),
		Record: audit.Record{
			RequestID: uuid.NewString(), UserID: caller.UserID, Subject: caller.Subject, AgentID: at.AgentID, Target: at.Target, Protocol: at.protocol,
			Method: r.Method, Path: strings.TrimPrefix(r.URL.Path, at.prefix), StartedAt: h.cfg.Now(),
		},
	}
	if at.protocol == audit.Kubernetes {
		for name := range r.Header {
			if strings.HasPrefix(name, "Impersonate-") {
				return nil, fault.New(errcode.PermissionDenied, "as whom you appear in the cluster is said by the relay: send no header %s", name)
			}
		}
		query := r.URL.Query()
		watches := query.Get("watch") == "1" || query.Get("watch") == "true"
		v.lasts = v.lasts || watches || query.Get("follow") == "true"
		if v.Verb, v.Resource = audit.Describe(r.Method, v.Path, watches); v.Verb != "" {
			v.Path = ""
		}
		v.reads = v.reads && v.Resource.Subresource != "proxy"
	}
	return v, nil
}

// Get asks the Kubernetes API of an agent for something, as the caller, and has the answer read. Where at is not 0 it is that connection of the agent.
func (h *Handler) Get(ctx context.Context, caller policy.Caller, agentID, at int64, path, accept string, read func(*http.Response) error) error {
	target := address{Instruction: route.Instruction{AgentID: agentID, ConnectionID: at, Target: route.KubernetesAPI}, protocol: audit.Kubernetes}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+route.KubernetesAPI+path, http.NoBody)
	if err != nil {
		return fmt.Errorf("ask agent %d: %w", agentID, err)
	}
	request.Header.Set("Accept", accept)
	v, err := h.visit(caller, target, request)
	if err != nil {
		return err
	}
	if err := h.cfg.Audit.Reserve(ctx, 1); err != nil {
		return err //nolint:wrapcheck // a fault
	}
	defer h.record(v, audit.Ended)
	if err := h.enter(v); err != nil {
		v.Error = fault.From(err).Error()
		return err
	}
	defer h.leave(v)
	v.as.set(request.Header)
	response, err := h.cfg.Transport.RoundTrip(request.WithContext(With(ctx, &v.way)))
	if err != nil {
		err = reason(ctx, err)
		v.Error = fault.From(err).Error()
		return err
	}
	v.Status = response.StatusCode
	response.Body = &receivedBody{response.Body, v}
	defer response.Body.Close() //nolint:errcheck // it was read, or is not wanted
	return read(response)
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
			return policy.Impersonation{}, err //nolint:wrapcheck // a fault
		}
	default:
		user, known := h.cfg.Directory.User(caller.UserID)
		if !known || user.Blocked {
			return policy.Impersonation{}, fault.New(errcode.PermissionDenied, "user %d is blocked or does not exist any more", caller.UserID)
		}
		caller.Admin = caller.Admin && user.Admin
		role = h.cfg.Directory.AgentRole(caller.UserID, v.address.AgentID)
		if err := policy.User(caller, role, what); err != nil {
			return policy.Impersonation{}, err //nolint:wrapcheck // a fault
		}
	}
	if agent.Revoked {
		return policy.Impersonation{}, fault.New(errcode.FailedPrecondition, "agent %d is revoked", v.address.AgentID)
	}
	return policy.Impersonate(caller, role), nil
}

// enter lets a request in, and counts it.
func (h *Handler) enter(v *visit) error {
	as, err := h.authorize(v)
	if err != nil {
		return err
	}
	v.as = impersonation{as}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.count >= h.cfg.MaxRequests:
		return fault.New(errcode.ResourceExhausted, "%d requests are under way at this relay, as many as may be: try again", h.count)
	case h.under[v.caller] >= h.cfg.MaxRequestsPerCaller:
		return fault.New(errcode.ResourceExhausted, "%d of your requests are under way at this relay, as many as may be: try again", h.under[v.caller])
	}
	h.count++
	h.under[v.caller]++
	return nil
}

func (h *Handler) leave(v *visit) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.lasting, v)
	h.count--
	if h.under[v.caller]--; h.under[v.caller] == 0 {
		delete(h.under, v.caller)
	}
	if h.draining && h.count == 0 {
		h.ended.Do(func() { close(h.idle) })
	}
}

// Requests counts those that are under way.
func (h *Handler) Requests() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.count
}

// Drain ends watches, whose clients begin them elsewhere, waits for all other requests, and gives up what is left when finish is done.
func (h *Handler) Drain(finish context.Context) {
	h.mu.Lock()
	if h.draining = true; h.count == 0 {
		h.mu.Unlock()
		return
	}
	for v, cancel := range h.lasting {
		if v.Verb == "watch" {
			cancel(errDrained)
		}
	}
	h.mu.Unlock()
	select {
	case <-h.idle:
	case <-finish.Done():
		h.mu.Lock()
		for _, cancel := range h.lasting {
			cancel(errDrained)
		}
		h.mu.Unlock()
	}
}

var errDrained = fault.New(errcode.Unavailable, "this relay is being drained: ask another one")

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

func (h *Handler) follow(v *visit, cancel context.CancelCauseFunc) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lasting[v] = cancel
	if h.draining && v.Verb == "watch" {
		cancel(errDrained)
	}
}

// Run gives up requests that last and whose callers may not do them any more, until ctx is done.
func (h *Handler) Run(ctx context.Context) {
	for {
		changed := h.cfg.Directory.Changed()
		h.mu.Lock()
		for v, cancel := range h.lasting {
			if _, err := h.authorize(v); err != nil {
				cancel(err)
			}
		}
		h.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// record what is known of a request by now.
func (h *Handler) record(v *visit, phase audit.Phase) {
	r := v.Record
	r.Phase, r.ConnectionID = phase, v.way.ConnectionID
	if phase == audit.Ended {
		r.Duration, r.BytesSent, r.BytesReceived = h.cfg.Now().Sub(v.StartedAt), v.sent.Load(), v.received.Load()
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
		v.as.set(p.Out.Header)
		return
	}
	p.SetXForwarded()
}

// answered is told of each answer.
func (h *Handler) answered(response *http.Response) error {
	v := visitOf(response.Request.Context())
	if conn, is := response.Body.(*upgraded); is {
		response.Body = &exchanged{conn, v}
	} else if v.Verb == "watch" {
		response.Body = &watched{response.Body, response.Request.Context()}
	}
	return nil
}

// failed is told of a request that has no answer.
func (h *Handler) failed(w http.ResponseWriter, r *http.Request, err error) {
	v := visitOf(r.Context())
	h.refuse(w, r, v, reason(r.Context(), err))
}

func (h *Handler) refuse(w http.ResponseWriter, r *http.Request, v *visit, err error) {
	v.Error = fault.From(err).Error()
	fault.WriteHTTP(w, r, h.cfg.Logger, err)
}

// reason why a request has no answer, for its caller.
func reason(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		if cut, is := context.Cause(ctx).(*fault.Error); is { //nolint:errorlint // a cause of ours is given as it is
			return cut
		}
		return fault.Wrap(err, errcode.Canceled, "the caller has gone")
	}
	var known *fault.Error
	if errors.As(err, &known) {
		return known
	}
	var reset *tunnel.ResetError
	if errors.As(err, &reset) {
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

func (buffers) Get() []byte  { return bodies.Get().([]byte) } //nolint:forcetypeassert // there are no others
func (buffers) Put(b []byte) { bodies.Put(b) }                //nolint:staticcheck // a slice header more or less
