// Package agent is the relay agent. It runs in a cluster behind a firewall, dials relays, and joins the streams that
// they open with targets in the cluster.
//
// It stays reachable through every configured relay: a lost, old or draining connection is replaced, if
// possible before it ends (package link). A target must be in the agent's configuration at the control plane
// and in the local setting targets.allowed_addresses. Requests to the Kubernetes API impersonate only the user
// that the relay sets (kube).
//
// Streams are independent: a slow stream does not delay others, and uses at most one window of memory. A stream
// above max_streams is reset as retryable. When a stream ends, so does the connection to its target,
// except for the Kubernetes API.
//
// On shutdown it accepts no more streams, and waits for open ones up to drain_timeout. It is ready while one
// relay is connected. The last configuration is kept while no relay is reachable, but not over a restart.
package agent

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strings"
	"time"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/services/relay/agent/link"
	"lockstep.internal/services/relay/agent/targets"
)

// Config of the relay agent.
type Config struct {
	service.Config `yaml:",inline"`

	Telemetry       telemetry.Config `yaml:"telemetry" help:"logs, traces and metrics"`
	CredentialsFile string           `yaml:"credentials_file" help:"credentials file from the registration of the agent; required; read again for each connection"`
	Pod             string           `yaml:"pod" help:"namespace/name of the program's pod, which relays show; empty outside of a pod"`
	Relay           Relay            `yaml:"relay" help:"relays and connections"`
	Kubernetes      Kubernetes       `yaml:"kubernetes" help:"the cluster's API server"`
	Targets         Targets          `yaml:"targets" help:"other targets in the cluster"`
	MaxStreams      int              `yaml:"max_streams" help:"maximum open streams of all connections"`
	MaxUnread       config.Bytes     `yaml:"max_unread" help:"most memory for received and unread data of all streams; above it, the stream is reset that has waited longest for its target; 0 = half of Go's memory limit, 1GiB without one"`
}

// Relay configures the connections with relays.
type Relay struct {
	URLs        []string      `yaml:"urls" help:"addresses of relays for agents, such as wss://relay.example; the path /tunnel is appended. If the address is a load balancer, set connections to at least the number of relays"`
	Connections int           `yaml:"connections" help:"connections with each address"`
	TLS         TLS           `yaml:"tls" help:"TLS with relays that have a wss or https URL"`
	RetryMin    time.Duration `yaml:"retry_min" help:"largest random delay before the first attempt to reconnect; multiplied by 1.6 after each failure"`
	RetryMax    time.Duration `yaml:"retry_max" help:"largest delay between attempts to reconnect"`
	MaxAge      time.Duration `yaml:"max_age" help:"age at which a connection is replaced, plus or minus a tenth; 0 = never"`
	Linger      time.Duration `yaml:"linger" help:"how long open streams of a replaced connection may continue"`
}

// TLS with relays. The files are read again for each connection.
type TLS struct {
	CAFile   string `yaml:"ca_file" help:"PEM file with trusted CAs; empty = the system's"`
	CertFile string `yaml:"cert_file" help:"PEM file with the agent's certificate, for relays that require one"`
	KeyFile  string `yaml:"key_file" help:"PEM file with the private key of the certificate"`
}

// Kubernetes configures the API server.
type Kubernetes struct {
	Enabled    bool   `yaml:"enabled" help:"forward requests to the Kubernetes API"`
	Kubeconfig string `yaml:"kubeconfig" help:"kubeconfig of the cluster; empty = in-cluster configuration"`
}

// Targets limits the targets other than the Kubernetes API.
type Targets struct {
	AllowedAddresses []string      `yaml:"allowed_addresses" help:"allowed addresses host:port of targets; * is any host, any part of one label of its name, or any port; {namespace_prefix} stands for the prefix in the credentials file"`
	WorkspaceDomain  string        `yaml:"workspace_domain" help:"domain of the Services of workspaces, which the gateway may reach if a rule of the relay permits it, at any port, in the namespaces that begin with the prefix in the credentials file; empty = none"`
	DialTimeout      time.Duration `yaml:"dial_timeout" help:"time-out to connect to a target"`

	// DialContext connects to targets, for programs that start an agent in their own process where no DNS has the names
	// of Services. Defaults to that of [net.Dialer].
	DialContext func(ctx context.Context, network, address string) (net.Conn, error) `yaml:"-"`
}

// DefaultConfig serves metrics and health checks on 127.0.0.1:8089, dials a relay on this machine, and allows
// Services of workspaces as targets.
func DefaultConfig() Config {
	return Config{
		Config:    service.DefaultConfig("127.0.0.1:8089"),
		Telemetry: telemetry.DefaultConfig(),
		Relay: Relay{
			URLs: []string{"ws://127.0.0.1:8090"}, Connections: 1, RetryMin: time.Second, RetryMax: 20 * time.Second,
			MaxAge: 2 * time.Hour, Linger: 12 * time.Hour,
		},
		Kubernetes: Kubernetes{Enabled: true},
		Targets: Targets{
			// Services in the namespaces of workspaces.
			AllowedAddresses: []string{"*.{namespace_prefix}*.svc:*", "*.{namespace_prefix}*.svc.cluster.local:*"},
			WorkspaceDomain:  "svc",
			DialTimeout:      10 * time.Second,
			DialContext:      new(net.Dialer).DialContext,
		},
		MaxStreams: 1000,
	}
}

var podName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)

// Validate returns all faults.
func (c Config) Validate() []error {
	var faults []error
	if c.CredentialsFile == "" {
		faults = append(faults,
			config.Invalid("credentials_file", "is required: the file from the registration of the agent"))
	} else if _, err := natsauth.ReadAgentCredentials(c.CredentialsFile); err != nil {
		faults = append(faults, config.Invalid("credentials_file", "%v", err))
	}
	if c.Pod != "" && !podName.MatchString(c.Pod) {
		faults = append(faults, config.Invalid("pod", "%q is not namespace/name of a pod", c.Pod))
	}
	if c.MaxStreams < 1 {
		faults = append(faults, config.Invalid("max_streams", "%d is less than 1", c.MaxStreams))
	}
	if c.Kubernetes.Kubeconfig != "" && !c.Kubernetes.Enabled {
		faults = append(faults, config.Invalid("kubernetes.kubeconfig", "has no effect without kubernetes.enabled"))
	}
	return faults
}

// Validate checks addresses and times.
func (r Relay) Validate() []error {
	var faults []error
	if len(r.URLs) == 0 {
		faults = append(faults, config.Invalid("urls", "is empty: set the address of a relay, such as wss://relay.example"))
	}
	encrypted := false
	for _, text := range r.URLs {
		address, err := tunnelURL(text)
		if err != nil {
			faults = append(faults, config.Invalid("urls", "%v", err))
		}
		encrypted = encrypted || strings.HasPrefix(address, "wss:")
	}
	if r.TLS != (TLS{}) && !encrypted {
		faults = append(faults, config.Invalid("tls", "has no effect: none of relay.urls begins with wss or https"))
	}
	if r.Connections < 1 {
		faults = append(faults, config.Invalid("connections", "%d is less than 1", r.Connections))
	}
	if r.RetryMin <= 0 {
		faults = append(faults, config.Invalid("retry_min", "%s is not a positive duration", r.RetryMin))
	}
	if r.RetryMax < r.RetryMin {
		faults = append(faults, config.Invalid("retry_max", "%s is less than retry_min, %s", r.RetryMax, r.RetryMin))
	}
	if r.MaxAge < 0 {
		faults = append(faults, config.Invalid("max_age", "%s is less than 0", r.MaxAge))
	}
	if r.Linger <= 0 {
		faults = append(faults, config.Invalid("linger", "%s is not a positive duration", r.Linger))
	}
	return faults
}

func (r Relay) backoff() link.Backoff { return link.Backoff{Base: r.RetryMin, Max: r.RetryMax} }

// tunnelURL returns the WebSocket URL of a relay address.
func tunnelURL(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil {
		return "", fmt.Errorf("%q is not a URL", text)
	}
	switch u.Scheme {
	case "http":
		u.Scheme = "ws"
	case "https":
		u.Scheme = "wss"
	case "ws", "wss":
	default:
		u.Host = ""
	}
	if u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("%q is not the address of a relay, such as wss://relay.example:8090", u.Redacted())
	}
	return u.JoinPath("tunnel").String(), nil
}

// Validate reads the files.
func (t TLS) Validate() []error {
	if (t.CertFile == "") != (t.KeyFile == "") {
		return []error{config.Invalid("", "cert_file and key_file must be set together")}
	}
	if _, err := t.load(); err != nil {
		return []error{config.Invalid("", "%v", err)}
	}
	return nil
}

// Validate checks the patterns and the time-out.
func (t Targets) Validate() []error {
	var faults []error
	if _, err := targets.ParseAllowed(t.AllowedAddresses, natsauth.DefaultNamespacePrefix); err != nil {
		faults = append(faults, config.Invalid("allowed_addresses", "%v", err))
	}
	if t.WorkspaceDomain != "" {
		if _, err := targets.ParseAddress("a.b." + t.WorkspaceDomain + ":1"); err != nil {
			faults = append(faults, config.Invalid("workspace_domain", "%q is not a domain such as svc", t.WorkspaceDomain))
		}
	}
	if t.DialTimeout <= 0 {
		faults = append(faults, config.Invalid("dial_timeout", "%s is not a positive duration", t.DialTimeout))
	}
	return faults
}

// Program describes the binary.
func Program() config.Program {
	return config.Program{
		Name: "lockstep-relay-agent",
		About: "The relay agent runs in a cluster behind a firewall. It dials relays, and forwards their " +
			"callers' requests to the " +
			"cluster's Kubernetes API and to configured targets. It needs the agent's credentials file.",
	}
}
