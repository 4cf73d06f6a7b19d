package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"lockstep.internal/libs/copybuffer"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/services/relay/tunnel"
)

const (
	maxHeader         = 64 << 10
	readHeaderTimeout = 10 * time.Second
	// idleTimeout is longer than the relay keeps a stream in its pool.
	idleTimeout = 2 * time.Minute
	// flushInterval of responses with a known length. Others are flushed after every write.
	flushInterval = 10 * time.Millisecond
)

// Proxy forwards requests on streams to the API server. It may be used by many goroutines.
type Proxy struct {
	client  *client
	server  *http.Server
	streams *streamListener
	logger  *slog.Logger
}

// New makes a proxy to the configured API server. It does not connect: an error is one of the configuration.
func New(cfg *rest.Config, logger *slog.Logger) (*Proxy, error) {
	c, err := newClient(cfg)
	if err != nil {
		return nil, err
	}
	p := &Proxy{client: c, streams: newStreamListener(), logger: logger}
	log := slog.NewLogLogger(logger.Handler(), slog.LevelDebug)
	reverse := &httputil.ReverseProxy{
		Rewrite: p.rewrite, Transport: p, FlushInterval: flushInterval, ModifyResponse: p.modifyResponse,
		ErrorHandler: p.handleError, ErrorLog: log, BufferPool: copybuffer.Pool{},
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	p.server = &http.Server{
		Handler: p.requireIdentity(reverse), Protocols: protocols, MaxHeaderBytes: maxHeader,
		ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout, ErrorLog: log, ConnContext: p.connContext,
		DisableGeneralOptionsHandler: true,
	}
	return p, nil
}

// Run serves streams until ctx is done. It then closes open ones.
func (p *Proxy) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		_ = p.streams.Close() // the errors do not matter
		_ = p.server.Close()
	})
	defer stop()
	defer p.client.close()
	if err := p.server.Serve(p.streams); ctx.Err() == nil {
		return fmt.Errorf("serve streams: %w", err)
	}
	return nil
}

// Check returns why the API server cannot be used; nil if it can.
func (p *Proxy) Check(ctx context.Context) error { return p.client.check(ctx) }

// ServeStream serves the requests of a stream, one after the other. It returns when the server has accepted the stream,
// and calls ended after the stream has ended. After draining is closed, the next response ends the stream.
func (p *Proxy) ServeStream(s *tunnel.Stream, draining <-chan struct{}, ended func()) {
	one := &stream{Stream: s, draining: draining, cancel: func() {}, ended: ended}
	if !p.streams.put(one) {
		s.Reset(tunnel.NotAccepted, "the agent is stopping")
		ended()
	}
}

type streamKey struct{}

// connContext returns a context that is cancelled when the stream ends.
func (p *Proxy) connContext(ctx context.Context, c net.Conn) context.Context {
	s, ok := c.(*stream)
	if !ok {
		return ctx
	}
	ctx, s.cancel = context.WithCancel(context.WithValue(ctx, streamKey{}, s))
	s.OnFailure(s.cancel)
	return ctx
}

type identityKey struct{}

// requireIdentity refuses requests without an allowed impersonation, and invalid paths.
func (p *Proxy) requireIdentity(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		identity, err := ParseIdentity(r.Header)
		switch {
		case err != nil:
			p.logger.WarnContext(r.Context(), "refused a request", slog.String(logkey.Method, r.Method), logkey.Error(err))
			writeStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, err.Error())
		case r.Method == http.MethodConnect || !strings.HasPrefix(r.URL.Path, "/") ||
			slices.Contains(strings.Split(r.URL.Path, "/"), ".."):
			writeStatus(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "path: not a path of the Kubernetes API")
		default:
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), identityKey{}, identity)))
		}
	})
}

// rewrite sets impersonation. ReverseProxy removes hop-by-hop headers before it, so a Connection header cannot
// remove impersonation.
func (p *Proxy) rewrite(r *httputil.ProxyRequest) {
	r.Out.URL.RawQuery = r.In.URL.RawQuery // unchanged
	r.SetURL(p.client.base)
	identity, _ := r.In.Context().Value(identityKey{}).(Identity) // requireIdentity has set it
	identity.set(r.Out.Header)
}

// RoundTrip sends a request to the API server.
func (p *Proxy) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header.Get("Upgrade") != "" {
		return p.client.upgrades.RoundTrip(r) //nolint:wrapcheck // handleError explains it
	}
	return p.client.plain.RoundTrip(r) //nolint:wrapcheck // handleError explains it
}

// modifyResponse ends the stream with this response if its session drains.
func (p *Proxy) modifyResponse(response *http.Response) error {
	s, ok := response.Request.Context().Value(streamKey{}).(*stream)
	if !ok || response.StatusCode == http.StatusSwitchingProtocols {
		return nil
	}
	select {
	case <-s.draining:
		response.Header.Set("Connection", "close")
	default:
	}
	return nil
}

func (p *Proxy) handleError(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil { // nobody reads the response
		p.logger.DebugContext(r.Context(), "a request was cancelled", logkey.Error(err))
		panic(http.ErrAbortHandler)
	}
	p.logger.WarnContext(r.Context(), "the API server does not respond", logkey.Error(err))
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		writeStatus(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
			"the agent cannot reach the API server of its cluster: "+err.Error())
		return
	}
	writeStatus(w, http.StatusBadGateway, metav1.StatusReasonUnknown,
		"the API server did not respond to the agent: "+err.Error())
}

// writeStatus responds with an error of the Kubernetes API.
func writeStatus(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	body, err := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code),
		Reason: reason, Message: message,
	})
	if err != nil {
		panic(err) // strings and numbers can be marshalled
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(body) // fails when the caller has left
}
