package service

import (
	"net"
	"time"

	"lockstep.internal/libs/config"
)

// Config is the common section of every service's configuration; embed it inline.
type Config struct {
	Ops          Listener      `yaml:"ops" help:"the listener for operators: /livez, /readyz and /metrics"`
	DrainTimeout time.Duration `yaml:"drain_timeout" help:"time to finish running work after SIGTERM; let the process manager wait a little longer before it kills the process"`

	// OnListen is called once all listeners are open, with their addresses by part name and the ops
	// listener under "ops". It is useful with port 0. It must not block. Optional.
	OnListen func(addrs map[string]string) `yaml:"-"`
	// OnReady is called when all parts are ready for the first time, with the same addresses. It
	// must not block. Optional.
	OnReady func(addrs map[string]string) `yaml:"-"`
}

// DefaultConfig returns a configuration with the ops listener on the address and a drain timeout of 25 s.
func DefaultConfig(opsListen string) Config {
	ops := DefaultListener(opsListen)
	ops.MaxBody = 64 * config.KiB
	ops.MaxHTTPConnections, ops.MaxHTTPConnectionsPerHost = 100, 50
	return Config{Ops: ops, DrainTimeout: 25 * time.Second}
}

// Validate checks the timeout.
func (c Config) Validate() []error {
	if c.DrainTimeout <= 0 {
		return []error{config.Invalid("drain_timeout", "%s is not a positive duration", c.DrainTimeout)}
	}
	return nil
}

// Listener configures one listening HTTP server.
type Listener struct {
	Listen               string        `yaml:"listen" help:"host:port to listen on; port 0 picks a free one, an empty host means all addresses"`
	TLS                  TLS           `yaml:"tls" help:"without a certificate the listener serves plain HTTP"`
	ReadHeaderTimeout    time.Duration `yaml:"read_header_timeout" help:"time that a client has to send the header of a request"`
	IdleTimeout          time.Duration `yaml:"idle_timeout" help:"time after which an idle connection is closed"`
	MaxHeader            config.Bytes  `yaml:"max_header" help:"largest request header"`
	MaxBody              config.Bytes  `yaml:"max_body" help:"largest request body, also for a whole stream; 0 = unlimited, also for max_bodies and body_timeout"`
	MaxBodies            config.Bytes  `yaml:"max_bodies" help:"largest sum of the bodies of all concurrent requests; a request above it gets resource_exhausted"`
	BodyTimeout          time.Duration `yaml:"body_timeout" help:"time that a client has to send the body of a request"`
	WriteTimeout         time.Duration `yaml:"write_timeout" help:"time that a client has to read 64KiB of a response, at most 10s if it is an error; then the response is cut"`
	MaxResponses         config.Bytes  `yaml:"max_responses" help:"largest sum of the responses that wait for their clients; above it, those that have waited longest are cut; 0 = unlimited"`
	MaxConcurrentStreams int           `yaml:"max_concurrent_streams" help:"largest number of concurrent requests on one HTTP/2 connection"`

	MaxHTTPConnections        int `yaml:"max_http_connections" help:"maximum open connections, without those that were upgraded, such as tunnels; others are closed at once"`
	MaxHTTPConnectionsPerHost int `yaml:"max_http_connections_per_host" help:"the same for one remote address (IPv6: one /64 network), except for this machine; raise it if clients share the address of a proxy"`
	MaxHTTPRequests           int `yaml:"max_http_requests" help:"maximum requests in progress, without those that were upgraded; others get unavailable"`
	MaxHTTPRequestsPerHost    int `yaml:"max_http_requests_per_host" help:"the same for one remote address, like max_http_connections_per_host"`
	MaxConnectsPerHost        int `yaml:"max_connects_per_host" help:"maximum new connections of one remote address per second, ten times as many at once, except for this machine"`
}

// TLS names the certificate of a listener. The files are read again when they change.
type TLS struct {
	CertFile     string `yaml:"cert_file" help:"PEM file with the certificate and its chain"`
	KeyFile      string `yaml:"key_file" help:"PEM file with the private key of the certificate"`
	ClientCAFile string `yaml:"client_ca_file" help:"PEM file with the CA certificates of clients; when set, clients must present a certificate"`
}

// DefaultListener listens on addr without TLS, with limits for an API.
func DefaultListener(addr string) Listener {
	return Listener{
		Listen:               addr,
		ReadHeaderTimeout:    10 * time.Second,
		IdleTimeout:          2 * time.Minute,
		MaxHeader:            16 * config.KiB,
		MaxBody:              4 * config.MiB,
		MaxBodies:            32 * config.MiB,
		BodyTimeout:          30 * time.Second,
		WriteTimeout:         time.Minute,
		MaxResponses:         64 * config.MiB,
		MaxConcurrentStreams: 100,

		MaxHTTPConnections:        1000,
		MaxHTTPConnectionsPerHost: 200,
		MaxHTTPRequests:           2000,
		MaxHTTPRequestsPerHost:    500,
		MaxConnectsPerHost:        50,
	}
}

// Validate checks the address and the limits.
func (l Listener) Validate() []error {
	var errs []error
	if _, _, err := net.SplitHostPort(l.Listen); err != nil {
		errs = append(errs, config.Invalid("listen", "%q is not host:port, such as 127.0.0.1:8080 or :8080", l.Listen))
	}
	for key, timeout := range map[string]time.Duration{
		"read_header_timeout": l.ReadHeaderTimeout,
		"idle_timeout":        l.IdleTimeout,
		"write_timeout":       l.WriteTimeout,
	} {
		if timeout <= 0 {
			errs = append(errs, config.Invalid(key, "%s is not a positive duration", timeout))
		}
	}
	if l.MaxHeader < config.KiB {
		errs = append(errs, config.Invalid("max_header", "%s is less than 1KiB", l.MaxHeader))
	}
	if l.MaxBody > 0 && l.MaxBodies < l.MaxBody {
		errs = append(errs, config.Invalid("max_bodies", "%s is less than max_body, %s", l.MaxBodies, l.MaxBody))
	}
	if l.MaxBody > 0 && l.BodyTimeout <= 0 {
		errs = append(errs, config.Invalid("body_timeout", "%s is not a positive duration", l.BodyTimeout))
	}
	for key, limit := range map[string]int{
		"max_concurrent_streams":        l.MaxConcurrentStreams,
		"max_http_connections":          l.MaxHTTPConnections,
		"max_http_connections_per_host": l.MaxHTTPConnectionsPerHost,
		"max_http_requests":             l.MaxHTTPRequests,
		"max_http_requests_per_host":    l.MaxHTTPRequestsPerHost,
		"max_connects_per_host":         l.MaxConnectsPerHost,
	} {
		if limit < 1 {
			errs = append(errs, config.Invalid(key, "%d is less than 1", limit))
		}
	}
	return errs
}

// Enabled reports whether the listener uses TLS.
func (t TLS) Enabled() bool { return t.CertFile != "" || t.KeyFile != "" }

// Validate checks that both certificate and key are set and readable.
func (t TLS) Validate() []error {
	if (t.CertFile == "") != (t.KeyFile == "") {
		return []error{config.Invalid("", "set cert_file and key_file together")}
	}
	if t.ClientCAFile != "" && !t.Enabled() {
		return []error{config.Invalid("client_ca_file", "has no effect without cert_file and key_file")}
	}
	if !t.Enabled() {
		return nil
	}
	if _, err := t.config(nil); err != nil {
		return []error{config.Invalid("", "%v", err)}
	}
	return nil
}
