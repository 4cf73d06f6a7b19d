package kube

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
)

const (
	// connectTimeout of TCP, and of TLS.
	connectTimeout = 10 * time.Second
	// idleConnTimeout of a connection with the API server.
	idleConnTimeout = 90 * time.Second
	// maxBuffered is the HTTP/2 receive window of one response.
	maxBuffered = 256 << 10
	// pingAfter and pingTimeout detect a dead HTTP/2 connection.
	pingAfter, pingTimeout = 30 * time.Second, 15 * time.Second
)

// client sends requests to the API server with the agent's credentials.
type client struct {
	base *url.URL
	// plain sends requests over HTTP/2. upgrades sends those that upgrade, over HTTP/1.1.
	plain, upgrades http.RoundTripper
	transports      []*http.Transport
}

func newClient(cfg *rest.Config) (*client, error) {
	base, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("address of the API server: %w", err)
	}
	transportConfig, err := cfg.TransportConfig()
	if err != nil {
		return nil, fmt.Errorf("connection to the API server: %w", err)
	}
	c := &client{base: base}
	for protocol, into := range map[string]*http.RoundTripper{"h2": &c.plain, "http/1.1": &c.upgrades} {
		one, err := newTransport(transportConfig, protocol == "h2")
		if err != nil {
			return nil, err
		}
		c.transports = append(c.transports, one)
		// The wrappers read a token again when it changes.
		if *into, err = transport.HTTPWrappersForConfig(transportConfig, one); err != nil {
			return nil, fmt.Errorf("credentials for the API server: %w", err)
		}
	}
	return c, nil
}

func newTransport(transportConfig *transport.Config, multiplexed bool) (*http.Transport, error) {
	secure, err := transport.TLSConfigFor(transportConfig)
	if err != nil {
		return nil, fmt.Errorf("TLS with the API server: %w", err)
	}
	// Each upgrade uses a new connection; TLS session resumption makes it cheaper.
	if secure != nil {
		secure.ClientSessionCache = tls.NewLRUClientSessionCache(0)
	}
	dialer := &net.Dialer{Timeout: connectTimeout, KeepAlive: pingAfter}
	t := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext, TLSClientConfig: secure,
		TLSHandshakeTimeout: connectTimeout, IdleConnTimeout: idleConnTimeout, MaxIdleConnsPerHost: 32,
		ExpectContinueTimeout: time.Second,
		// Compression is between the caller and the API server.
		DisableCompression: true,
		Protocols:          new(http.Protocols),
		HTTP2: &http.HTTP2Config{
			MaxReceiveBufferPerStream: maxBuffered, SendPingTimeout: pingAfter, PingTimeout: pingTimeout,
		},
	}
	if transportConfig.Proxy != nil {
		t.Proxy = transportConfig.Proxy
	}
	if transportConfig.DialHolder != nil {
		t.DialContext = transportConfig.DialHolder.Dial
	}
	t.Protocols.SetHTTP1(true)
	t.Protocols.SetHTTP2(multiplexed)
	return t, nil
}

// close closes idle connections.
func (c *client) close() {
	for _, t := range c.transports {
		t.CloseIdleConnections()
	}
}

// check returns why the API server cannot be used; nil if it can.
func (c *client) check(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base.JoinPath("readyz").String(), http.NoBody)
	if err != nil {
		return fmt.Errorf("ask the API server: %w", err)
	}
	response, err := c.plain.RoundTrip(request)
	if err != nil {
		return fmt.Errorf("the cluster's API server does not respond: %w", err)
	}
	_, err = io.Copy(io.Discard, io.LimitReader(response.Body, maxBuffered))
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return fmt.Errorf("reading the response of the cluster's API server failed: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the cluster's API server is not ready: %s", response.Status)
	}
	return nil
}
