package webfront

import (
	"context"
	"errors"
	"log"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep.internal/libs/copybuffer"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/service"
	"lockstep.internal/services/gateway/access"
	"lockstep.internal/services/gateway/address"
	"lockstep.internal/services/gateway/origin"
	"lockstep.internal/services/gateway/page"
	"lockstep.internal/services/gateway/session"
	"lockstep.internal/services/gateway/signin"
	"lockstep.internal/services/gateway/sshfront"
)

// Paths of the gateway on hosts of workspaces.
const (
	pathOwn   = "/.lockstep/"
	pathStart = pathOwn + "start"
	pathState = pathOwn + "state"
)

const (
	// flushInterval of responses with a known length. ReverseProxy flushes others after every write. An early flush of a
	// complete response costs another write.
	flushInterval    = 10 * time.Millisecond
	dialTimeout      = 10 * time.Second
	idleConnections  = 64 // to one port of one workspace; fewer than the relay permits to one workspace
	idleTimeout      = time.Minute
	workspaceSuffix  = ".workspace.invalid"
	strictTransport  = "max-age=31536000"
	maxForwardedFrom = 20 // addresses in X-Forwarded-For
)

// Workspaces are entered, reached and started.
type Workspaces interface {
	// Enter is access.Table.Enter, and Watch is access.Table.Watch.
	Enter(userID int64, name string, port int) (*access.Grant, error)
	Watch(userID int64, name string, port int) (access.Entry, <-chan struct{}, error)
	// Dial connects to a port of a workspace by its id.
	Dial(ctx context.Context, id string, port int) (net.Conn, error)
	// Connect opens an SSH connection to the agent of a workspace, with the rights of the person.
	Connect(ctx context.Context, workspace access.Entry, person sshfront.Person) (sshfront.Connection, error)
	// Start sets the desired state to running, on behalf of a person. The error is shown to the person.
	Start(ctx context.Context, userID int64, id string) error
}

// Options of a front. All are required but TrustedProxies.
type Options struct {
	Zone       address.Zone
	SignIn     *signin.SignIn
	Workspaces Workspaces
	// TrustedProxies are networks of proxies in front of the gateway, whose X-Forwarded-For counts.
	TrustedProxies []netip.Prefix
	Activity       sshfront.Activity
	Logger         *slog.Logger
}

// Front is an http.Handler for all hosts of a zone.
type Front struct {
	Options

	proxy     *httputil.ReverseProxy
	transport *http.Transport
}

// New returns a front. Close it.
func New(o Options) *Front {
	f := &Front{Options: o}
	f.transport = &http.Transport{
		DialContext: f.dial, MaxIdleConnsPerHost: idleConnections, IdleConnTimeout: idleTimeout, DisableCompression: true,
	}
	f.proxy = &httputil.ReverseProxy{
		Rewrite: f.rewrite, Transport: f.transport, FlushInterval: flushInterval, ModifyResponse: modifyResponse,
		ErrorHandler: f.failed, BufferPool: copybuffer.Pool{},
		ErrorLog: log.New(logWriter{o.Logger}, "", 0),
	}
	return f
}

// Close closes idle connections to workspaces.
func (f *Front) Close() { f.transport.CloseIdleConnections() }

// logWriter takes what the standard library logs about connections that broke.
type logWriter struct{ logger *slog.Logger }

func (l logWriter) Write(line []byte) (int, error) {
	l.logger.Debug(strings.TrimSpace(string(line)))
	return len(line), nil
}

// visit is a request that may pass, in its context.
type visit struct {
	grant  *access.Grant
	shared bool // its answer may be read by the page of another port
}

type visitKey struct{}

func visitOf(r *http.Request) visit {
	v, _ := r.Context().Value(visitKey{}).(visit)
	return v
}

// ServeHTTP serves the sign-in host and all workspaces.
func (f *Front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Strict-Transport-Security", strictTransport)
	if f.Zone.IsSignIn(r.Host) {
		f.SignIn.ServeHTTP(w, r)
		return
	}
	target, ok := f.Zone.Parse(r.Host)
	if !ok {
		f.page(w, r, http.StatusNotFound, page.Page{Title: "There is nothing at this address"})
		return
	}
	if r.URL.Path == signin.PathSession {
		f.SignIn.Accept(w, r, target)
		return
	}
	decision := origin.Decide(f.Zone, target, r)
	switch {
	case decision == origin.Refuse:
		http.Error(w, "the page of another site or workspace may not make this request", http.StatusForbidden)
		return
	case decision == origin.AllowShared && origin.IsPreflight(r):
		origin.AnswerPreflight(r, w)
		return
	}
	current, ok := f.SignIn.Session(f.Zone.Host(target), r)
	if !ok {
		f.SignIn.Begin(w, r, target)
		return
	}
	ctx, release := f.SignIn.While(r.Context(), current)
	defer release()
	r = r.WithContext(ctx)
	switch {
	case strings.HasPrefix(r.URL.Path, pathOwn) && decision == origin.AllowShared:
		http.Error(w, "the page of another port may not make this request", http.StatusForbidden)
		return
	case strings.HasPrefix(r.URL.Path, pathOwn):
		f.serveOwn(w, r, target, current)
		return
	case target.Port == address.TerminalPort:
		f.redirectToTerminal(w, r, target)
		return
	}
	f.enter(w, r, target, current, decision == origin.AllowShared)
}

func (f *Front) enter(
	w http.ResponseWriter, r *http.Request, target address.Target, current session.Session, shared bool,
) {
	grant, err := f.Workspaces.Enter(current.UserID, target.Workspace, target.Port)
	switch {
	case errors.Is(err, access.ErrNotRunning):
		f.notRunning(w, r, grant.Entry, current)
		return
	case err != nil:
		f.unknown(w, r, current)
		return
	}
	defer grant.Close()
	ctx, release := whileGranted(context.WithValue(r.Context(), visitKey{}, visit{grant, shared}), grant)
	defer release()
	if isStream(r) {
		var stop func()
		ctx, stop = whileServing(ctx)
		defer stop()
	}
	counted := f.count(w, r, grant)
	defer counted.session.Close()
	f.proxy.ServeHTTP(counted, r.WithContext(ctx))
}

// whileGranted returns a context that ends with the grant, whose end is its cause. Call release at the end of its use.
func whileGranted(ctx context.Context, grant *access.Grant) (_ context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	keep := context.AfterFunc(grant.Context(), func() { cancel(context.Cause(grant.Context())) })
	return ctx, func() { keep(); cancel(nil) }
}

// errDraining is why streams end when the gateway stops.
var errDraining = errors.New("the gateway restarts: connect again")

// whileServing returns a context that ends when the server drains. Call release at the end of its use.
func whileServing(ctx context.Context) (_ context.Context, release func()) {
	draining := service.Draining(ctx)
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-draining:
			cancel(errDraining)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil); <-ended }
}

// rewrite makes the request that the workspace gets.
func (f *Front) rewrite(p *httputil.ProxyRequest) {
	grant := visitOf(p.In).grant
	p.SetURL(&url.URL{Scheme: "http", Host: grant.Entry.ID + workspaceSuffix + ":" + strconv.Itoa(grant.Port)})
	p.Out.Host = p.In.Host
	signin.HideCookies(p.Out.Header)
	// Programs believe whatever a proxy says by these, so nobody else may.
	maps.DeleteFunc(p.Out.Header, func(name string, _ []string) bool {
		return strings.HasPrefix(name, "X-Forwarded-") || name == "X-Real-Ip"
	})
	p.Out.Header.Set("X-Forwarded-For", strings.Join(f.forwardedFor(p.In), ", "))
	p.Out.Header.Set("X-Forwarded-Host", p.In.Host)
	p.Out.Header.Set("X-Forwarded-Proto", "https")
}

// forwardedFor returns the addresses that the request came through, the client first. What a client writes itself does
// not count: an address is believed only from a trusted proxy.
func (f *Front) forwardedFor(r *http.Request) []string {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return nil
	}
	addresses := []netip.Addr{peer.Addr().Unmap()}
	before := strings.Split(strings.Join(r.Header["X-Forwarded-For"], ","), ",")
	for _, text := range slices.Backward(before) {
		if !f.trusted(addresses[0]) || len(addresses) >= maxForwardedFrom {
			break
		}
		claimed, err := netip.ParseAddr(strings.TrimSpace(text))
		if err != nil {
			break
		}
		addresses = append([]netip.Addr{claimed.Unmap()}, addresses...)
	}
	texts := make([]string, len(addresses))
	for i, a := range addresses {
		texts[i] = a.String()
	}
	return texts
}

func (f *Front) trusted(a netip.Addr) bool {
	return slices.ContainsFunc(f.TrustedProxies, func(p netip.Prefix) bool { return p.Contains(a) })
}

// modifyResponse keeps a workspace from setting cookies for others.
func modifyResponse(r *http.Response) error {
	signin.FilterSetCookies(r.Header)
	r.Header.Del("Strict-Transport-Security") // it is the gateway's
	if v := visitOf(r.Request); v.shared {
		r.Header.Del("Access-Control-Allow-Origin")
		r.Header.Del("Access-Control-Allow-Credentials")
		origin.Share(r.Request, r.Header)
	}
	return nil
}

func (f *Front) dial(ctx context.Context, _, hostPort string) (net.Conn, error) {
	host, text, err := net.SplitHostPort(hostPort)
	if err != nil {
		return nil, err //nolint:wrapcheck // the host is that of rewrite
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return nil, err //nolint:wrapcheck // see above
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	return f.Workspaces.Dial(ctx, strings.TrimSuffix(host, workspaceSuffix), port)
}

// failed answers when the workspace did not.
func (f *Front) failed(w http.ResponseWriter, r *http.Request, err error) {
	grant := visitOf(r).grant
	cause := context.Cause(r.Context())
	var ended signin.EndedError
	switch {
	case errors.Is(cause, access.ErrRevoked), errors.Is(cause, access.ErrStopped),
		errors.Is(cause, errDraining), errors.As(cause, &ended):
		http.Error(w, cause.Error(), http.StatusForbidden)
		return
	case cause != nil:
		return // the client has left
	}
	f.Logger.InfoContext(r.Context(), "a port of a workspace did not answer",
		slog.String(logkey.WorkspaceID, grant.Entry.ID), logkey.Error(err))
	port := strconv.Itoa(grant.Port)
	f.page(w, r, http.StatusBadGateway, page.Page{
		Title: "Port " + port + " of " + grant.Entry.Name + " does not answer",
		Text:  "Start a program in the workspace that serves HTTP at port " + port + ", and load this page again.",
	})
}
