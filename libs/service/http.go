package service

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"lockstep.internal/libs/logkey"
)

// HTTPOptions are the options of HTTPServer.
type HTTPOptions struct {
	Logger     *slog.Logger
	Metrics    prometheus.Registerer // counts and times requests; optional
	StopBefore []string              // parts that the handler uses: they stop after it
	// UnreadBodyTimeout bounds the wait for the part of a body that the handler did not read. Defaults to the listener's
	// read_header_timeout.
	UnreadBodyTimeout time.Duration
	// WrapConn wraps each connection below TLS. Optional.
	WrapConn func(net.Conn) net.Conn
}

const (
	// maxReadFrame is the largest HTTP/2 frame, in bytes: the smallest maximum that the protocol allows. Each connection
	// keeps a buffer of the largest frame that it received.
	maxReadFrame = 16 << 10
	// maxUnreadPerConnection is how many bytes of bodies an HTTP/2 connection buffers until handlers read them.
	maxUnreadPerConnection = 256 << 10
)

// HTTPServer is the part that serves handler on a listener: HTTP/1.1 and HTTP/2, with TLS or
// without (h2c), with the limits of cfg. A drain lets requests finish; handlers of long streams
// watch [Draining]. Requests that are still open at drain_timeout are cut.
func HTTPServer(name string, cfg Listener, handler http.Handler, options HTTPOptions) Part {
	if options.UnreadBodyTimeout == 0 {
		options.UnreadBodyTimeout = cfg.ReadHeaderTimeout
	}
	s := &httpServer{name: name, cfg: cfg, handler: handler, options: options}
	return Part{Name: name, StopBefore: options.StopBefore, Listen: s.listen, Run: s.run}
}

type drainingKey struct{}

// Draining returns a channel that is closed when the server of the request drains; streams should
// end then. It is nil outside of an HTTPServer.
func Draining(ctx context.Context) <-chan struct{} {
	draining, ok := ctx.Value(drainingKey{}).(<-chan struct{})
	if !ok {
		return nil
	}
	return draining
}

type connKey struct{}

// connOf returns the connection of a request.
func connOf(ctx context.Context) net.Conn {
	return ctx.Value(connKey{}).(net.Conn) //nolint:errcheck,forcetypeassert // the server sets it
}

type httpServer struct {
	name    string
	cfg     Listener
	handler http.Handler
	options HTTPOptions
}

func (s *httpServer) listen(ctx context.Context) (net.Listener, error) {
	var secure *tls.Config
	if s.cfg.TLS.Enabled() {
		var err error
		if secure, err = s.cfg.TLS.config(s.options.Logger); err != nil {
			return nil, err
		}
		secure.NextProtos = []string{"h2", "http/1.1"}
	}
	var listening net.ListenConfig
	listener, err := listening.Listen(ctx, "tcp", s.cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("cannot listen: %w", err)
	}
	if secure != nil && s.options.WrapConn != nil {
		listener = &wrapped{listener, s.options.WrapConn}
	}
	if secure != nil {
		return tls.NewListener(listener, secure), nil
	}
	return listener, nil
}

// wrapped is a listener that wraps each connection.
type wrapped struct {
	net.Listener

	wrap func(net.Conn) net.Conn
}

func (w *wrapped) Accept() (net.Conn, error) {
	conn, err := w.Listener.Accept()
	if err != nil {
		return nil, err //nolint:wrapcheck // the listener's own
	}
	return w.wrap(conn), nil
}

func (s *httpServer) run(ctx context.Context, part *Handle) error {
	handler, err := s.instrumented()
	if err != nil {
		return Permanent(err)
	}
	bodies := &bodyLimits{cfg: s.cfg, refused: part.refused}
	handler = s.limitUnreadBody(bodies.handler(limitRequests(s.cfg, part.refused).handler(handler)))
	listener := limitConnections(part.Listener(), s.cfg,
		s.options.Logger.With(slog.String(logkey.Part, s.name)), part.refused)
	draining := ctx.Done()
	base := context.WithValue(context.WithoutCancel(ctx), drainingKey{}, draining)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(!s.cfg.TLS.Enabled())
	server := &http.Server{
		Handler:           handler,
		Protocols:         protocols,
		ReadHeaderTimeout: s.cfg.ReadHeaderTimeout,
		IdleTimeout:       s.cfg.IdleTimeout,
		MaxHeaderBytes:    int(s.cfg.MaxHeader),
		ConnState:         listener.onState,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          s.cfg.MaxConcurrentStreams,
			MaxReadFrameSize:              maxReadFrame,
			MaxReceiveBufferPerConnection: maxUnreadPerConnection,
			MaxReceiveBufferPerStream:     maxUnreadPerConnection,
			// A vanished client, or one that reads nothing, does not keep its streams open for
			// ever.
			SendPingTimeout:  30 * time.Second,
			PingTimeout:      15 * time.Second,
			WriteByteTimeout: s.cfg.WriteTimeout,
		},
		BaseContext: func(net.Listener) context.Context { return base },
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, conn)
		},
		ErrorLog: slog.NewLogLogger(s.options.Logger.With(slog.String(logkey.Part, s.name)).Handler(), slog.LevelWarn),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	part.Ready()
	select {
	case err := <-served:
		return Permanent(errors.Join(fmt.Errorf("cannot serve: %w", err), server.Close()))
	case <-draining:
	}
	err = server.Shutdown(part.DrainContext())
	if err != nil {
		err = errors.Join(fmt.Errorf("requests were cut: %w", err), server.Close())
	}
	if end := <-served; !errors.Is(end, http.ErrServerClosed) {
		err = errors.Join(err, end)
	}
	return err
}

// limitUnreadBody bounds the time for the part of a body that the handler did not read. An HTTP/1
// server reads it before it answers. Without a bound, a client that stops sending would block its
// connection and the drain.
func (s *httpServer) limitUnreadBody(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(w, r)
		if r.ProtoMajor == 1 && r.Body != nil && r.Body != http.NoBody {
			// Fails when the connection is closed.
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.options.UnreadBodyTimeout))
		}
	})
}

func (s *httpServer) instrumented() (http.Handler, error) {
	if s.options.Metrics == nil {
		return s.handler, nil
	}
	labels := prometheus.Labels{"listener": s.name}
	inFlight := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "lockstep_http_requests_in_flight", Help: "Requests in progress.", ConstLabels: labels,
	})
	duration := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:        "lockstep_http_request_duration_seconds",
		Help:        "Duration of requests, by method and status.",
		ConstLabels: labels,
		Buckets:     []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 60},
	}, []string{"method", "code"})
	for _, collector := range []prometheus.Collector{inFlight, duration} {
		if err := s.options.Metrics.Register(collector); err != nil {
			return nil, fmt.Errorf("register metrics of %s: %w", s.name, err)
		}
	}
	return promhttp.InstrumentHandlerInFlight(inFlight, promhttp.InstrumentHandlerDuration(duration, s.handler)), nil
}
