package relay

import (
	"net/url"
	"time"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/config"
	"lockstep.internal/libs/natsconn"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/relay/audit"
	"lockstep.internal/services/relay/auth"
	"lockstep.internal/services/relay/connections"
	"lockstep.internal/services/relay/nats"
	"lockstep.internal/services/relay/policy"
	"lockstep.internal/services/relay/tunnel"
)

// Config of the relay.
type Config struct {
	service.Config `yaml:",inline"`

	Telemetry telemetry.Config `yaml:"telemetry"`
	Cell      CellConfig       `yaml:"cell"`
	NATS      natsconn.Config  `yaml:"nats"`
	Agents    AgentsConfig     `yaml:"agents"`
	External  ExternalConfig   `yaml:"external"`
	Internal  InternalConfig   `yaml:"internal"`
	Audit     AuditConfig      `yaml:"audit"`
	Registry  RegistryConfig   `yaml:"registry"`
	Tunnel    TunnelConfig     `yaml:"tunnel"`
}

// CellConfig names the cell.
type CellConfig struct {
	Name string `yaml:"name" help:"name of the cell, a DNS label: the second token of every subject"`
}

// AgentsConfig is the listener that agents dial.
type AgentsConfig struct {
	service.Listener `yaml:",inline"`

	MaxConnections         int `yaml:"max_connections" help:"maximum connections of all agents"`
	MaxConnectionsPerAgent int `yaml:"max_connections_per_agent" help:"maximum connections of one agent; keeps one agent from using all of max_connections"`
}

// ExternalConfig is the listener for callers.
type ExternalConfig struct {
	service.Listener `yaml:",inline"`

	Issuer               string        `yaml:"issuer" help:"required issuer (iss) of the tokens of services"`
	Audience             string        `yaml:"audience" help:"required audience (aud) of the tokens of services"`
	SecretFile           config.Secret `yaml:"secret_file" help:"file with the secret that services sign their tokens with (HS256 or better); empty = users only"`
	OtherSecretFile      config.Secret `yaml:"other_secret_file" help:"file with a second accepted secret, for rotation"`
	CallersFile          string        `yaml:"callers_file" help:"YAML file with rules: which service may reach which agents; empty = none"`
	AgentTimeout         time.Duration `yaml:"agent_timeout" help:"how long a request waits for an agent that is not connected, unless its caller has a deadline: of gRPC or Connect, the query timeout of the Kubernetes API (kubectl --request-timeout), or the header Prefer: wait=SECONDS"`
	MaxRequests          int           `yaml:"max_requests" help:"maximum requests in flight"`
	StreamLifetime       time.Duration `yaml:"stream_lifetime" help:"a request, such as a watch, exec or TCP stream, ends after this time; at most 24h"`
	MaxRequestsPerCaller int           `yaml:"max_requests_per_caller" help:"maximum requests in flight of one user or service"`
	MaxRequestsPerAgent  int           `yaml:"max_requests_per_agent" help:"maximum requests in flight of one user or service to one agent; keeps one caller from using all max_streams of the agent"`
	MaxWaitingRequests   int           `yaml:"max_waiting_requests" help:"maximum requests that wait for an agent that is not connected"`
}

// AuditConfig bounds the audit records of one caller, so that nobody fills the stream AUDIT.
type AuditConfig struct {
	Burst     int `yaml:"burst" help:"audit records that one caller may cause at once; above it, changes of clusters are refused and other requests are summed up"`
	PerMinute int `yaml:"per_minute" help:"audit records that one caller may cause per minute after burst"`
}

// InternalConfig is the listener for other relays.
type InternalConfig struct {
	service.Listener `yaml:",inline"`

	URL             string        `yaml:"url" help:"where other relays reach this one, ws://host:port or wss://host:port; empty = its listen address, or its host name if it listens at all addresses"`
	SecretFile      config.Secret `yaml:"secret_file" help:"file with a secret that only relays share; required"`
	OtherSecretFile config.Secret `yaml:"other_secret_file" help:"file with a second accepted secret, for rotation"`
	CAFile          string        `yaml:"ca_file" help:"PEM file with the CAs of other relays' certificates; empty = the system's"`
	ServerName      string        `yaml:"server_name" help:"name in the certificates of other relays; empty = the host of their internal.url"`
}

// RegistryConfig configures the registry of relays.
type RegistryConfig struct {
	Lease    time.Duration `yaml:"lease" help:"how long a relay counts as alive after its last refresh; whole seconds"`
	Replicas int           `yaml:"replicas" help:"replicas of the registry's bucket: 1, or 3 with three NATS servers"`
}

// TunnelConfig bounds tunnels.
type TunnelConfig struct {
	Window       config.Bytes  `yaml:"window" help:"receive window of a stream, and the most memory it uses"`
	MaxUnread    config.Bytes  `yaml:"max_unread" help:"most memory for received and unread data of all streams; above it, the stream is reset that has waited longest for its reader; 0 = half of Go's memory limit, 1GiB without one"`
	MaxStreams   int           `yaml:"max_streams" help:"maximum streams that another relay may have open in one tunnel"`
	PingInterval time.Duration `yaml:"ping_interval" help:"interval of pings; a tunnel is closed after two intervals without data"`
	WriteTimeout time.Duration `yaml:"write_timeout" help:"a tunnel is closed after a write made no progress for this long"`
}

func (c TunnelConfig) tunnel(budget *tunnel.Budget) tunnel.Config {
	return tunnel.Config{
		Window: int(c.Window), MaxStreams: c.MaxStreams, PingInterval: c.PingInterval, WriteTimeout: c.WriteTimeout,
		Budget: budget,
	}
}

// maxHTTPRequests is more than external.max_requests, so that requests above that are refused with the reason.
const maxHTTPRequests = 25_000

// DefaultConfig is for one machine. Secrets are required.
func DefaultConfig() Config {
	listener := func(address string, connections, perHost int) service.Listener {
		l := service.DefaultListener(address)
		l.MaxBody = 0 // bodies are streamed
		l.MaxHeader = 64 * config.KiB
		l.MaxHTTPConnections, l.MaxHTTPConnectionsPerHost = connections, perHost
		l.MaxHTTPRequests, l.MaxHTTPRequestsPerHost = maxHTTPRequests, 2*perHost
		// kubectl logs may wait in a pager.
		l.WriteTimeout, l.MaxResponses = 2*time.Minute, 128*config.MiB
		return l
	}
	return Config{
		Config:    service.DefaultConfig("127.0.0.1:8088"),
		Telemetry: telemetry.DefaultConfig(),
		Cell:      CellConfig{Name: "local"},
		NATS:      natsconn.DefaultConfig(),
		Agents: AgentsConfig{
			Listener: listener("127.0.0.1:8090", 2_000, 500), MaxConnections: 20_000, MaxConnectionsPerAgent: 50,
		},
		External: ExternalConfig{
			Listener: listener("127.0.0.1:8086", 10_000, 2_000), Issuer: "lockstep", Audience: serviceName,
			AgentTimeout: connections.DefaultAgentTimeout, MaxRequests: 20_000, MaxRequestsPerCaller: 2_000,
			StreamLifetime:      access.DefaultStreamLifetime,
			MaxRequestsPerAgent: 100, MaxWaitingRequests: connections.DefaultMaxWaiting,
		},
		Audit:    AuditConfig{Burst: audit.DefaultBurst, PerMinute: audit.DefaultPerMinute},
		Internal: InternalConfig{Listener: listener("127.0.0.1:8087", 1_000, 200)},
		Registry: RegistryConfig{Lease: nats.DefaultLease, Replicas: 1},
		Tunnel: TunnelConfig{
			Window: 512 * config.KiB, MaxStreams: 10_000, PingInterval: 20 * time.Second, WriteTimeout: 30 * time.Second,
		},
	}
}

// Validate checks all fields except those of embedded configurations, which have their own Validate.
func (c Config) Validate() []error {
	var errs []error
	invalidIf := func(wrong bool, key, format string, args ...any) {
		if wrong {
			errs = append(errs, config.Invalid(key, format, args...))
		}
	}
	if err := topology.ValidateCell(c.Cell.Name); err != nil {
		invalidIf(true, "cell.name", "%v", err)
	}
	atLeastOne := func(key string, value int) { invalidIf(value < 1, key, "%d is less than 1", value) }
	atLeastOne("agents.max_connections", c.Agents.MaxConnections)
	atLeastOne("agents.max_connections_per_agent", c.Agents.MaxConnectionsPerAgent)
	invalidIf(c.External.AgentTimeout <= 0, "external.agent_timeout", "%s is not positive", c.External.AgentTimeout)
	if err := access.ValidateStreamLifetime(c.External.StreamLifetime); err != nil {
		invalidIf(true, "external.stream_lifetime", "%v", err)
	}
	atLeastOne("external.max_requests", c.External.MaxRequests)
	invalidIf(c.External.MaxHTTPRequests <= c.External.MaxRequests, "external.max_http_requests",
		"%d is not more than external.max_requests, %d: callers would not learn the reason of a refusal",
		c.External.MaxHTTPRequests, c.External.MaxRequests)
	atLeastOne("external.max_requests_per_caller", c.External.MaxRequestsPerCaller)
	atLeastOne("audit.burst", c.Audit.Burst)
	atLeastOne("audit.per_minute", c.Audit.PerMinute)
	atLeastOne("external.max_requests_per_agent", c.External.MaxRequestsPerAgent)
	atLeastOne("external.max_waiting_requests", c.External.MaxWaitingRequests)
	invalidIf(c.External.OtherSecretFile.IsSet() && !c.External.SecretFile.IsSet(),
		"external.other_secret_file", "has no effect without external.secret_file")
	invalidIf(!c.Internal.SecretFile.IsSet(),
		"internal.secret_file", "is required: create one with: openssl rand -base64 48")
	if c.Internal.URL != "" {
		u, err := url.Parse(c.Internal.URL)
		invalidIf(err != nil || u.Host == "" || u.Scheme != "ws" && u.Scheme != "wss",
			"internal.url", "%q: not a ws:// or wss:// URL, for example wss://10.0.0.7:8087", c.Internal.URL)
	}
	invalidIf(c.Registry.Lease < 3*time.Second || c.Registry.Lease%time.Second != 0,
		"registry.lease", "%s: must be whole seconds, at least 3s", c.Registry.Lease)
	invalidIf(c.Registry.Replicas < 1 || c.Registry.Replicas > 5,
		"registry.replicas", "%d: must be 1 to 5", c.Registry.Replicas)
	invalidIf(c.Tunnel.Window < 64*config.KiB || c.Tunnel.Window > 64*config.MiB,
		"tunnel.window", "%s: must be between 64KiB and 64MiB", c.Tunnel.Window)
	invalidIf(c.Tunnel.MaxUnread != 0 && c.Tunnel.MaxUnread < c.Tunnel.Window,
		"tunnel.max_unread", "%s is less than tunnel.window, %s", c.Tunnel.MaxUnread, c.Tunnel.Window)
	atLeastOne("tunnel.max_streams", c.Tunnel.MaxStreams)
	invalidIf(c.Tunnel.PingInterval <= 0, "tunnel.ping_interval", "%s is not positive", c.Tunnel.PingInterval)
	invalidIf(c.Tunnel.WriteTimeout <= 0, "tunnel.write_timeout", "%s is not positive", c.Tunnel.WriteTimeout)
	if _, err := c.internalTokens(""); c.Internal.SecretFile.IsSet() && err != nil {
		invalidIf(true, "internal.secret_file", "%v", err)
	}
	if _, err := c.serviceVerifier(); err != nil {
		invalidIf(true, "external.secret_file", "%v", err)
	}
	if _, err := c.rules(); err != nil {
		invalidIf(true, "external.callers_file", "%v", err)
	}
	return errs
}

const (
	// internalIssuer is the issuer of tokens between relays. Their audience is the id of the relay that they are for.
	internalIssuer   = "lockstep-relay"
	internalLifetime = 5 * time.Second
)

func (c Config) internalSecrets() ([][]byte, error) {
	return secrets(c.Internal.SecretFile, c.Internal.OtherSecretFile)
}

func (c Config) serviceSecrets() ([][]byte, error) {
	return secrets(c.External.SecretFile, c.External.OtherSecretFile)
}

// internalTokens is for tokens to the relay with this id.
func (c Config) internalTokens(relayID string) (auth.Config, error) {
	keys, err := c.internalSecrets()
	cfg := auth.Config{Issuer: internalIssuer, Audience: relayID, Secrets: keys, Lifetime: internalLifetime}
	return cfg, err
}

// serviceVerifier verifies the tokens of services; nil without a secret.
func (c Config) serviceVerifier() (*auth.Verifier, error) {
	if !c.External.SecretFile.IsSet() {
		return nil, nil //nolint:nilnil // nil means none
	}
	keys, err := c.serviceSecrets()
	if err != nil {
		return nil, err
	}
	return auth.NewVerifier(auth.Config{Issuer: c.External.Issuer, Audience: c.External.Audience, Secrets: keys})
}

func (c Config) rules() ([]policy.Rule, error) {
	if c.External.CallersFile == "" {
		return nil, nil
	}
	return policy.ReadRules(c.External.CallersFile)
}

func secrets(files ...config.Secret) ([][]byte, error) {
	var found [][]byte
	for _, file := range files {
		if !file.IsSet() {
			continue
		}
		value, err := file.Read()
		if err != nil {
			return nil, err
		}
		found = append(found, []byte(value))
	}
	return found, nil
}
