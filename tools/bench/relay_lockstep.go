package main

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"time"

	"lockstep.internal/services/relay/hub"
	"lockstep.internal/services/relay/proxy"
	"lockstep.internal/services/relay/registry"
	"lockstep.internal/services/relay/route"
	"lockstep.internal/services/relay/tunnel"
)

// relayChildConfig is what a relay is started with.
type relayChildConfig struct {
	certified

	ID string
	// Agents is the address to listen on for agents.
	Agents string
	// Other is the relay that has the agent, and where it listens for relays.
	Other, OtherURL string
}

const onlyConnection = 1

func serveRelay(cfg relayChildConfig, signals <-chan os.Signal, ready func(map[string]string)) error {
	secure, err := cfg.client()
	if err != nil {
		return err
	}
	known := registry.New()
	h := hub.New(hub.Config{Self: cfg.ID, Registry: known, Peer: (&peers{url: cfg.OtherURL, tls: secure}).session})
	if cfg.Other != "" {
		c := registry.Connection{AgentID: bedAgent, ID: onlyConnection}
		if err := errors.Join(known.Put("relay."+cfg.Other, []byte(`{}`)), known.Put(c.Key(), []byte(`{"relay_id":"`+cfg.Other+`"}`))); err != nil {
			return err
		}
	}
	addrs := map[string]string{}
	failed := make(chan error, 3)
	for name, handler := range map[string]http.Handler{relayAgents: agentsOf(h), relayExternal: callersOf(h), relayInternal: peersOf(h)} {
		address := loopback
		if name == relayAgents {
			address = cfg.Agents
		}
		l, err := cfg.listen(address)
		if err != nil {
			return err
		}
		addrs[name] = l.Addr().String()
		go func() { failed <- (&http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}).Serve(l) }()
	}
	ready(addrs)
	select {
	case err := <-failed:
		return err
	case <-signals:
		return nil
	}
}

type peers struct {
	url string
	tls *tls.Config
	s   *tunnel.Session
}

func (p *peers) session(ctx context.Context, _ registry.Relay) (*tunnel.Session, error) {
	if p.s != nil {
		return p.s, nil
	}
	conn, secret, err := tunnel.Dialer{TLS: p.tls}.Dial(ctx, p.url, nil)
	if err != nil {
		return nil, err
	}
	p.s = tunnel.NewSession(conn, true, secret, tunnel.Config{}, nil)
	go p.s.Serve()
	return p.s, nil
}

func agentsOf(h *hub.Hub) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		agent, _ := strconv.ParseInt(r.Header.Get("Lockstep-Agent"), 10, 64)
		conn, err := tunnel.Upgrade(w, r)
		if err != nil {
			return
		}
		s := tunnel.NewSession(conn, false, r.TLS != nil, tunnel.Config{}, nil)
		defer h.Hold(registry.Connection{AgentID: agent, ID: onlyConnection}, s)()
		_ = s.Serve()
	})
}

func peersOf(h *hub.Hub) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := tunnel.Upgrade(w, r)
		if err != nil {
			return
		}
		_ = tunnel.NewSession(conn, false, r.TLS != nil, tunnel.Config{}, h.Follow).Serve()
	})
}

func callersOf(h *hub.Hub) http.Handler {
	mux := http.NewServeMux()
	instruction := func(r *http.Request) route.Instruction {
		agent, _ := strconv.ParseInt(r.PathValue("agent"), 10, 64)
		return route.Instruction{AgentID: agent, Target: r.PathValue("target")}
	}
	reverse := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Path = "/" + r.In.PathValue("path")
			r.SetURL(&url.URL{Scheme: "http", Host: "target"})
		},
		BufferPool: &buffers{},
		Transport:  proxy.NewTransport(h),
	}
	mux.HandleFunc("/agents/{agent}/http/{target}/{path...}", func(w http.ResponseWriter, r *http.Request) {
		in := r.WithContext(proxy.With(r.Context(), instruction(r)))
		reverse.ServeHTTP(w, in)
	})
	mux.HandleFunc("/agents/{agent}/tcp/{target}", func(w http.ResponseWriter, r *http.Request) {
		to, err := h.Open(r.Context(), &hub.Attempt{}, instruction(r))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		conn, _, err := hijacked(w)
		if err != nil {
			return
		}
		_, _ = conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"))
		_, _, _ = tunnel.Join(conn.(tunnel.Conn), to)
	})
	return mux
}

// agentChildConfig is what an agent is started with.
type agentChildConfig struct {
	certified

	URL, HTTP, Stream string
}

func serveAgent(cfg agentChildConfig, signals <-chan os.Signal, ready func(map[string]string)) error {
	secure, err := cfg.client()
	if err != nil {
		return err
	}
	s, err := connectAgent(context.Background(), cfg.URL, bedAgent, secure, map[string]string{httpName: cfg.HTTP, streamName: cfg.Stream})
	if err != nil {
		return err
	}
	ready(nil)
	<-signals
	return s.Close()
}

// connectAgent is one connection of an agent that leads to targets.
func connectAgent(ctx context.Context, relay string, agent int64, secure *tls.Config, targets map[string]string) (*tunnel.Session, error) {
	header := http.Header{"Lockstep-Agent": {strconv.FormatInt(agent, 10)}}
	conn, secret, err := tunnel.Dialer{TLS: secure}.Dial(ctx, relay, header)
	if err != nil {
		return nil, err
	}
	s := tunnel.NewSession(conn, true, secret, tunnel.Config{}, func(st *tunnel.Stream) {
		i, err := route.Decode(st.Head())
		if err != nil {
			st.Reset(tunnel.Refused, err.Error())
			return
		}
		var dialer net.Dialer
		to, err := dialer.DialContext(context.Background(), "tcp", targets[i.Target])
		if err != nil {
			st.Reset(tunnel.Unreachable, err.Error())
			return
		}
		_, _, _ = tunnel.Join(st, to.(tunnel.Conn))
	})
	go s.Serve()
	return s, nil
}
