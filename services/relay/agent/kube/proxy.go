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
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"lockstep.internal/services/relay/tunnel"
)

const (
	maxHeader         = 64 << 10
	readHeaderTimeout = 10 * time.Second
	// idleStream is how long a stream may wait for its next request: longer than relays keep one.
	idleStream = 2 * time.Minute
	copyBuffer = 32 << 10
)

// Proxy is made by [New].
type Proxy struct {
	client  *client
	server  *http.Server
	streams *streams
	logger  *slog.Logger
}

// New makes a proxy to the API server that the configuration leads to. It reaches for nothing: an error is a mistake in the configuration.
func New(cfg *rest.Config, logger *slog.Logger) (*Proxy, error) {
	c, err := newClient(cfg)
	if err != nil {
		return nil, err
	}
	p := &Proxy{client: c, streams: newStreams(), logger: logger}
	log := slog.NewLogLogger(logger.Handler(), slog.LevelDebug)
	reverse := &httputil.ReverseProxy{
		Rewrite: p.rewrite, Transport: p, FlushInterval: -1, ModifyResponse: p.answered, ErrorHandler: p.failed, ErrorLog: log, BufferPool: &buffers{},
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	p.server = &http.Server{
		Handler: p.guarded(reverse), Protocols: protocols, MaxHeaderBytes: maxHeader, ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleStream, ErrorLog: log,
		ConnContext: p.connected, DisableGeneralOptionsHandler: true,
	}
	return p, nil
}

// Run serves streams until ctx is done. What is still open then is cut.
func (p *Proxy) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		_ = p.streams.Close() // these have no outcome
		_ = p.server.Close()
	})
	defer stop()
	defer p.client.close()
	if err := p.server.Serve(p.streams); ctx.Err() == nil {
		return fmt.Errorf("serve streams: %w", err)
	}
	return nil
}

// Check says why the API server cannot be used, nil when it can.
func (p *Proxy) Check(ctx context.Context) error { return p.client.check(ctx) }

// Take serves the requests of a stream, one after the other. It returns at once; over is called when the stream has ended. leaving is closed when its session takes no more streams:
// with the request in hand the stream ends, too.
func (p *Proxy) Take(s *tunnel.Stream, leaving <-chan struct{}, over func()) {
	one := &stream{Stream: s, leaving: leaving, cancel: func() {}, over: over}
	if !p.streams.put(one) {
		s.Reset(tunnel.Elsewhere, "the agent stops")
		over()
	}
}

type streamKey struct{}

// connected makes the context of a stream's requests, which ends with the stream, whoever ends it.
func (p *Proxy) connected(ctx context.Context, c net.Conn) context.Context {
	s, is := c.(*stream)
	if !is {
		return ctx
	}
	ctx, s.cancel = context.WithCancel(context.WithValue(ctx, streamKey{}, s))
	s.OnFailure(s.cancel)
	return ctx
}

type identityKey struct{}

func (p *Proxy) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		identity, err := Admit(r.Header)
		switch {
		case err != nil:
			p.logger.WarnContext(r.Context(), "a request was refused", slog.String("method", r.Method), slog.String("error", err.Error()))
			answer(w, http.StatusForbidden, metav1.StatusReasonForbidden, err.Error())
		case r.Method == http.MethodConnect || !strings.HasPrefix(r.URL.Path, "/") || slices.Contains(strings.Split(r.URL.Path, "/"), ".."):
			answer(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "the request has no path of the Kubernetes API")
		default:
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), identityKey{}, identity)))
		}
	})
}

// rewrite comes last: no header that a caller has named as one of the connection is left out after it.
func (p *Proxy) rewrite(r *httputil.ProxyRequest) {
	r.Out.URL.RawQuery = r.In.URL.RawQuery // as it came
	r.SetURL(p.client.base)
	identity, _ := r.In.Context().Value(identityKey{}).(Identity) // guarded has put it there
	identity.assume(r.Out.Header)
}

// RoundTrip asks the API server.
func (p *Proxy) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header.Get("Upgrade") != "" {
		return p.client.upgrades.RoundTrip(r) //nolint:wrapcheck // failed says what it is about
	}
	return p.client.plain.RoundTrip(r) //nolint:wrapcheck // failed says what it is about
}

// answered has a stream end with this answer if its session is being left.
func (p *Proxy) answered(response *http.Response) error {
	s, is := response.Request.Context().Value(streamKey{}).(*stream)
	if !is || response.StatusCode == http.StatusSwitchingProtocols {
		return nil
	}
	select {
	case <-s.leaving:
		response.Header.Set("Connection", "close")
	default:
	}
	return nil
}

func (p *Proxy) failed(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil { // nobody hears it
		p.logger.DebugContext(r.Context(), "a request was given up", slog.String("error", err.Error()))
		panic(http.ErrAbortHandler)
	}
	p.logger.WarnContext(r.Context(), "the cluster's API server does not answer", slog.String("error", err.Error()))
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		answer(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "the agent cannot reach the API server of its cluster: "+err.Error())
		return
	}
	answer(w, http.StatusBadGateway, metav1.StatusReasonUnknown, "the API server of the cluster gave no answer to the agent: "+err.Error())
}

// answer with what clients of the Kubernetes API understand.
func answer(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	body, err := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	})
	if err != nil {
		panic(err) // texts and numbers have no other outcome
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(body) // fails when the caller has left
}

// buffers is the pool that bodies are copied through.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if buffer, is := b.pool.Get().(*[copyBuffer]byte); is {
		return buffer[:]
	}
	return make([]byte, copyBuffer)
}

func (b *buffers) Put(buffer []byte) { b.pool.Put((*[copyBuffer]byte)(buffer)) }
