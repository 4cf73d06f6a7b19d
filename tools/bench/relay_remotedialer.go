package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"github.com/gorilla/websocket"
	"github.com/rancher/remotedialer"
	"github.com/sirupsen/logrus"
)

// The peer is remotedialer as its users run it: a reverse proxy that keeps connections dials through the sessions of a
// server.

// peerConfig configures a server, or an agent, of remotedialer.
type peerConfig struct {
	certified

	// HTTP, Stream and Kube are the addresses of the target that the agent dials.
	HTTP, Stream, Kube string
	// URL of the server, for the agent.
	URL string
}

const (
	peerToken = "remotedialer"
	// keptConnections are more than there are clients.
	keptConnections = 1024
)

// remotedialer returns the route through a server and an agent of remotedialer.
func (r *relayFixture) remotedialer(ctx context.Context) route {
	cfg := peerConfig{
		certified: r.certified, HTTP: r.target.addresses[targetHTTP], Stream: r.target.addresses[targetStream],
		Kube: r.target.addresses[targetKube],
	}
	relay := r.startConfigured(ctx, childPeerRelay, cfg)
	cfg.URL = "ws://" + relay.addresses[relayAgents]
	if r.tls != nil {
		cfg.URL = "wss://" + relay.addresses[relayAgents]
	}
	r.startConfigured(ctx, childPeerAgent, cfg)
	to := r.relays.route(relay)
	to.name, to.token = peerName, ""
	return to
}

func runPeerRelay(ctx context.Context, cfg peerConfig, ready readyFunc) error {
	logrus.SetLevel(logrus.ErrorLevel)
	sessions := remotedialer.New(func(r *http.Request) (string, bool, error) {
		return r.Header.Get(remotedialer.ID), r.Header.Get("Authorization") == "Bearer "+peerToken, nil
	}, remotedialer.DefaultErrorWriter)
	proxy, err := peerProxy(cfg, sessions)
	if err != nil {
		return err
	}
	agents, errAgents := cfg.listen()
	external, errExternal := cfg.listen(httpProtocols()...)
	if err := errors.Join(errAgents, errExternal); err != nil {
		return err
	}
	return serveAll(ctx, map[string]server{
		relayAgents: {agents, newHTTPServer(sessions)}, relayExternal: {external, newHTTPServer(proxy)},
	}, ready)
}

// peerProxy forwards callers to agents.
func peerProxy(cfg peerConfig, sessions *remotedialer.Server) (http.Handler, error) {
	secure, err := cfg.client()
	if err != nil {
		return nil, err
	}
	// The host of a forwarded request is the agent, so that each agent has its kept connections.
	reverse := func(scheme, address string) http.Handler {
		return &httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) {
				r.Out.URL.Path = "/" + r.In.PathValue("path")
				r.SetURL(&url.URL{Scheme: scheme, Host: r.In.PathValue("agent")})
			},
			BufferPool: &buffers{},
			Transport: &http.Transport{
				DialContext: func(ctx context.Context, network, agent string) (net.Conn, error) {
					agent, _, _ = strings.Cut(agent, ":")
					return sessions.Dialer(agent)(ctx, network, address)
				},
				MaxIdleConnsPerHost: keptConnections, MaxIdleConns: keptConnections, TLSClientConfig: secure,
				DisableCompression: true,
			},
		}
	}
	mux := http.NewServeMux()
	mux.Handle("/agents/{agent}/http/{target}/{path...}", reverse("http", cfg.HTTP))
	mux.Handle("/agents/{agent}/kubernetes/{path...}", reverse("https", cfg.Kube))
	mux.HandleFunc("/agents/{agent}/tcp/{target}", func(w http.ResponseWriter, r *http.Request) {
		to, err := sessions.Dialer(r.PathValue("agent"))(r.Context(), "tcp", cfg.Stream)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer to.Close() //nolint:errcheck // nothing follows
		from, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer from.Close() //nolint:errcheck // nothing follows
		const upgraded = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
		if _, err := io.WriteString(from, upgraded); err == nil {
			join(from, to)
		}
	})
	return mux, nil
}

// buffers are the reused buffers of a reverse proxy.
type buffers struct{ sync.Pool }

// Get implements [httputil.BufferPool].
func (b *buffers) Get() []byte {
	if kept, is := b.Pool.Get().(*[]byte); is {
		return *kept
	}
	return make([]byte, copyBuffer)
}

// Put implements [httputil.BufferPool].
func (b *buffers) Put(buffer []byte) { b.Pool.Put(&buffer) }

// runPeerAgent runs an agent of remotedialer until its connection ends.
func runPeerAgent(ctx context.Context, cfg peerConfig, ready readyFunc) error {
	logrus.SetLevel(logrus.ErrorLevel)
	secure, err := cfg.client()
	if err != nil {
		return err
	}
	agent := strconv.FormatInt(benchAgent, 10)
	err = remotedialer.ConnectToProxy(ctx, cfg.URL,
		http.Header{"Authorization": {"Bearer " + peerToken}, remotedialer.ID: {agent}},
		func(string, string) bool { return true },
		&websocket.Dialer{TLSClientConfig: secure, HandshakeTimeout: remotedialer.HandshakeTimeOut},
		func(context.Context, *remotedialer.Session) error {
			ready(nil)
			return nil
		})
	return fmt.Errorf("the connection to %s has ended: %w", cfg.URL, err)
}
