package main

import (
	"context"
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

	"lockstep.internal/tools/stack"
)

// The peer is remotedialer as its users run it: a reverse proxy that keeps connections dials through the sessions of a
// server.

// peerConfig configures a server, or an agent, of remotedialer.
type peerConfig struct {
	certified

	// Target has the addresses that the agent dials.
	Target map[string]string
	// URL of the server, for the agent.
	URL string
}

// peerToken is the token of the agent.
const peerToken = "Bearer remotedialer"

// remotedialer returns the route through a server and an agent of remotedialer.
func (r *relayFixture) remotedialer(ctx context.Context) route {
	cfg := peerConfig{certified: r.certified, Target: r.target}
	relay := r.startStandIn(ctx, standInPeerRelay, cfg).addresses
	cfg.URL = "ws://" + relay[stack.ListenerAgents]
	if r.tls != nil {
		cfg.URL = "wss://" + relay[stack.ListenerAgents]
	}
	r.startStandIn(ctx, standInPeerAgent, cfg)
	return r.throughRelay(peerName, relay[stack.ListenerExternal], "")
}

func runPeerRelay(ctx context.Context, cfg peerConfig, ready readyFunc) error {
	logrus.SetLevel(logrus.ErrorLevel)
	sessions := remotedialer.New(func(r *http.Request) (string, bool, error) {
		return r.Header.Get(remotedialer.ID), r.Header.Get("Authorization") == peerToken, nil
	}, remotedialer.DefaultErrorWriter)
	secure, err := cfg.client()
	if err != nil {
		return err
	}
	// The host of a forwarded request is the agent, so that each agent has its kept connections.
	const keptConnections = 1024 // more than there are clients
	pool := &buffers{}
	reverse := func(scheme, target string) http.Handler {
		return &httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) {
				r.Out.URL.Path = "/" + r.In.PathValue("path")
				r.SetURL(&url.URL{Scheme: scheme, Host: r.In.PathValue("agent")})
			},
			BufferPool: pool,
			Transport: &http.Transport{
				DialContext: func(ctx context.Context, network, agent string) (net.Conn, error) {
					agent, _, _ = strings.Cut(agent, ":")
					return sessions.Dialer(agent)(ctx, network, cfg.Target[target])
				},
				MaxIdleConnsPerHost: keptConnections, MaxIdleConns: keptConnections, TLSClientConfig: secure,
				DisableCompression: true,
			},
		}
	}
	mux := http.NewServeMux()
	mux.Handle("/agents/{agent}/http/{target}/{path...}", reverse("http", targetHTTP))
	mux.Handle("/agents/{agent}/kubernetes/{path...}", reverse("https", targetKube))
	mux.HandleFunc("/agents/{agent}/tcp/{target}", func(w http.ResponseWriter, r *http.Request) {
		to, err := sessions.Dialer(r.PathValue("agent"))(r.Context(), "tcp", cfg.Target[targetStream])
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
	return serveAll(ctx, map[string]server{
		stack.ListenerAgents:   {cfg.certified, newHTTPServer(sessions)},
		stack.ListenerExternal: {cfg.certified, newHTTPServer(mux)},
	}, ready)
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
	err = remotedialer.ConnectToProxy(ctx, cfg.URL,
		http.Header{"Authorization": {peerToken}, remotedialer.ID: {strconv.FormatInt(benchAgent, 10)}},
		func(string, string) bool { return true },
		&websocket.Dialer{TLSClientConfig: secure, HandshakeTimeout: remotedialer.HandshakeTimeOut},
		func(context.Context, *remotedialer.Session) error {
			ready(nil)
			return nil
		})
	return fmt.Errorf("the connection to %s has ended: %w", cfg.URL, err)
}
