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
	// maxBuffered bytes of one response: what a caller that does not read costs.
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
	described, err := cfg.TransportConfig()
	if err != nil {
		return nil, fmt.Errorf("connection to the API server: %w", err)
	}
	c := &client{base: base}
	for protocol, into := range map[string]*http.RoundTripper{"h2": &c.plain, "http/1.1": &c.upgrades} {
		one, err := newTransport(described, protocol == "h2")
		if err != nil {
			return nil, err
		}
		c.transports = append(c.transports, one)
		// The wrappers read a token again when it changes.
		if *into, err = transport.HTTPWrappersForConfig(described, one); err != nil {
			return nil, fmt.Errorf("credentials for the API server: %w", err)
		}
	}
	return c, nil
}

func newTransport(described *transport.Config, multiplexed bool) (*http.Transport, error) {
	secure, err := transport.TLSConfigFor(described)
	if err != nil {
		return nil, fmt.Errorf("TLS with the API server: %w", err)
	}
	// An upgrade takes its connection with it: resuming sessions makes the next one cheaper.
	if secure != nil {
		secure.ClientSessionCache = tls.NewLRUClientSessionCache(0)
	}
	dialer := &net.Dialer{Timeout: connectTimeout, KeepAlive: pingAfter}
	t := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext, TLSClientConfig: secure,
		TLSHandshakeTimeout: connectTimeout, IdleConnTimeout: idleConnTimeout, MaxIdleConnsPerHost: 32, ExpectContinueTimeout: time.Second,
		// Compression is between the caller and the API server.
		DisableCompression: true,
		Protocols:          new(http.Protocols),
		HTTP2: &http.HTTP2Config{
			MaxReceiveBufferPerStream: maxBuffered, SendPingTimeout: pingAfter, PingTimeout: pingTimeout,
		},
	}
	if described.Proxy != nil {
		t.Proxy = described.Proxy
	}
	if described.DialHolder != nil {
		t.DialContext = described.DialHolder.Dial
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
		return fmt.Errorf("the cluster's API server does not answer: %w", err)
	}
	_, err = io.Copy(io.Discard, io.LimitReader(response.Body, maxBuffered))
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return fmt.Errorf("the cluster's API server does not answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the cluster's API server is not ready: %s", response.Status)
	}
	return nil
}
