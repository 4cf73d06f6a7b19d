package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	"github.com/rancher/remotedialer"
	"github.com/sirupsen/logrus"
)

// What Lockstep's relay is measured beside: remotedialer, put to use as its users do: a server whose sessions are dialled through, by a reverse proxy with kept connections.

// peerRelay is what a server of remotedialer is started with.
type peerRelay struct {
	certified

	// ID of this server among its peers, and the other one's; empty where it is alone.
	ID, PeerID string
	// Agents is the address to listen on for agents and peers.
	Agents string
	// PeerURL is where the other one listens for peers.
	PeerURL string
	// HTTP and Stream are addresses as the agent sees them.
	HTTP, Stream, Kube string
}

const (
	// peerToken is the secret between servers, and between them and agents.
	peerToken = "remotedialer"
	// keptConnections are more than there are clients.
	keptConnections = 1024
	// copyBuffer is how much the proxy reads at once.
	copyBuffer = 32 << 10
)

// Names of a relay's addresses.
const (
	relayAgents   = "agents"
	relayExternal = "external"
	relayInternal = "internal"
)

func hushRemotedialer() {
	logrus.SetLevel(logrus.ErrorLevel)
}

func servePeerRelay(cfg peerRelay, signals <-chan os.Signal, ready func(map[string]string)) error {
	hushRemotedialer()
	server := remotedialer.New(func(r *http.Request) (string, bool, error) {
		return r.Header.Get(remotedialer.ID), r.Header.Get("Authorization") == "Bearer "+peerToken, nil
	}, remotedialer.DefaultErrorWriter)
	server.PeerID, server.PeerToken = cfg.ID, peerToken
	agents, err := cfg.listen(cfg.Agents)
	if err != nil {
		return err
	}
	external, err := cfg.listen(loopback, httpProtocols...)
	if err != nil {
		return err
	}
	if cfg.PeerID != "" {
		server.AddPeer(cfg.PeerURL, cfg.PeerID, peerToken)
	}
	failed := make(chan error, 2)
	proxy, err := peerProxy(cfg, server)
	if err != nil {
		return err
	}
	for l, handler := range map[net.Listener]http.Handler{agents: server, external: proxy} {
		go func() { failed <- (&http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}).Serve(l) }()
	}
	ready(map[string]string{relayAgents: agents.Addr().String(), relayExternal: external.Addr().String()})
	select {
	case err := <-failed:
		return err
	case <-signals:
		return nil
	}
}

// peerProxy leads callers to agents.
func peerProxy(cfg peerRelay, server *remotedialer.Server) (http.Handler, error) {
	secure, err := cfg.client()
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/agents/{agent}/http/{target}/{path...}", &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Path = "/" + r.In.PathValue("path")
			r.SetURL(&url.URL{Scheme: "http", Host: r.In.PathValue("agent")}) // so that each agent has its kept connections
		},
		BufferPool: &buffers{},
		Transport: &http.Transport{DialContext: func(ctx context.Context, network, agent string) (net.Conn, error) {
			agent, _, _ = strings.Cut(agent, ":")
			return server.Dialer(agent)(ctx, network, cfg.HTTP)
		}, MaxIdleConnsPerHost: keptConnections, MaxIdleConns: keptConnections},
	})
	mux.Handle("/agents/{agent}/kubernetes/{path...}", &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Path = "/" + r.In.PathValue("path")
			r.SetURL(&url.URL{Scheme: "https", Host: r.In.PathValue("agent")})
		},
		BufferPool: &buffers{},
		Transport: &http.Transport{DialContext: func(ctx context.Context, network, agent string) (net.Conn, error) {
			agent, _, _ = strings.Cut(agent, ":")
			return server.Dialer(agent)(ctx, network, cfg.Kube)
		}, MaxIdleConnsPerHost: keptConnections, MaxIdleConns: keptConnections, TLSClientConfig: secure, DisableCompression: true},
	})
	mux.HandleFunc("/agents/{agent}/tcp/{target}", func(w http.ResponseWriter, r *http.Request) {
		to, err := server.Dialer(r.PathValue("agent"))(r.Context(), "tcp", cfg.Stream)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer to.Close() //nolint:errcheck // it is over
		from, _, err := hijacked(w)
		if err != nil {
			return
		}
		defer from.Close() //nolint:errcheck // it is over
		if _, err := io.WriteString(from, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"); err != nil {
			return
		}
		ended := make(chan struct{}, 2)
		for _, ends := range [][2]net.Conn{{from, to}, {to, from}} {
			go func() {
				_, _ = io.Copy(ends[0], ends[1]) // either end is the end
				ended <- struct{}{}
			}()
		}
		<-ended
	})
	return mux, nil
}

// buffers of a reverse proxy, used again.
type buffers struct{ sync.Pool }

func (b *buffers) Get() []byte {
	if kept, is := b.Pool.Get().(*[]byte); is {
		return *kept
	}
	return make([]byte, copyBuffer)
}

func (b *buffers) Put(buffer []byte) { b.Pool.Put(&buffer) }

// peerAgent is what an agent of remotedialer is started with.
type peerAgent struct {
	certified

	URL, Agent string
}

func servePeerAgent(cfg peerAgent, signals <-chan os.Signal, ready func(map[string]string)) error {
	hushRemotedialer()
	secure, err := cfg.client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	failed := make(chan error, 1)
	go func() {
		failed <- connectPeer(ctx, cfg.URL, cfg.Agent, secure, func() { ready(nil) })
	}()
	select {
	case err := <-failed:
		return errors.Join(errors.New("the connection has ended"), err)
	case <-signals:
		return nil
	}
}

// connectPeer is one connection of an agent of remotedialer, until it ends.
func connectPeer(ctx context.Context, url, agent string, secure *tls.Config, connected func()) error {
	header := http.Header{"Authorization": {"Bearer " + peerToken}, remotedialer.ID: {agent}}
	err := remotedialer.ConnectToProxy(ctx, url, header, func(string, string) bool { return true },
		&websocket.Dialer{TLSClientConfig: secure, HandshakeTimeout: remotedialer.HandshakeTimeOut},
		func(context.Context, *remotedialer.Session) error {
			connected()
			return nil
		})
	if err != nil {
		return fmt.Errorf("connect agent %s to %s: %w", agent, url, err)
	}
	return nil
}
