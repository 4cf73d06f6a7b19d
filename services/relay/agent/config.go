package agent

import (
	"fmt"
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
	CredentialsFile string           `yaml:"credentials_file" help:"the agent's credentials file, as made when the agent was registered; required. Only id and token are used; it is read again for each connection"`
	Pod             string           `yaml:"pod" help:"namespace/name of the pod the program runs in, which relays tell people; empty outside of one"`
	Relay           Relay            `yaml:"relay" help:"relays, and the connections with them"`
	Kubernetes      Kubernetes       `yaml:"kubernetes" help:"the cluster's API server"`
	Targets         Targets          `yaml:"targets" help:"what else in the cluster can be reached"`
	MaxStreams      int              `yaml:"max_streams" help:"streams that relays may have open at a time, over all connections together"`
}

// Relay says where relays are, and how connections with them are kept.
type Relay struct {
	URLs        []string      `yaml:"urls" help:"addresses of relays for agents, such as wss://relay.example; /tunnel is added. Where one address leads to several relays, see connections"`
	Connections int           `yaml:"connections" help:"connections to keep with each address"`
	TLS         TLS           `yaml:"tls" help:"TLS with relays, for addresses that begin with wss or https"`
	RetryMin    time.Duration `yaml:"retry_min" help:"the longest pause before the first attempt to connect again; it grows by 1.6 with each, and pauses are random shares of it"`
	RetryMax    time.Duration `yaml:"retry_max" help:"longest pause between attempts to connect"`
	MaxAge      time.Duration `yaml:"max_age" help:"when a connection is replaced by a new one, give or take a tenth; 0 = never"`
	Linger      time.Duration `yaml:"linger" help:"how long what is open on a connection may go on after that was replaced"`
}

// TLS says whom to trust and with what certificate to appear. The files are read for each connection.
type TLS struct {
	CAFile   string `yaml:"ca_file" help:"PEM file with the authorities to trust; empty = those of the system"`
	CertFile string `yaml:"cert_file" help:"PEM file with our certificate, for relays that ask for one"`
	KeyFile  string `yaml:"key_file" help:"PEM file with the private key of our certificate"`
}

// Kubernetes says how to reach the API server.
type Kubernetes struct {
	Enabled    bool   `yaml:"enabled" help:"whether the Kubernetes API can be reached through relays"`
	Kubeconfig string `yaml:"kubeconfig" help:"kubeconfig of the cluster; empty = the cluster that the program runs in"`
}

// Targets says what relays may be joined with, beside the Kubernetes API.
type Targets struct {
	AllowedAddresses []string      `yaml:"allowed_addresses" help:"addresses host:port that targets may have, * in the host for any characters and for any port; what the agent's configuration names beyond them is refused"`
	DialTimeout      time.Duration `yaml:"dial_timeout" help:"how long connecting to a target may take"`
}

// DefaultConfig listens for operators on 127.0.0.1:8089, connects with a relay on this machine, and lets Services of the cluster be targets.
func DefaultConfig() Config {
	return Config{
		Config:    service.DefaultConfig("127.0.0.1:8089"),
		Telemetry: telemetry.DefaultConfig(),
		Relay: Relay{
			URLs: []string{"ws://127.0.0.1:8090"}, Connections: 1, RetryMin: time.Second, RetryMax: 20 * time.Second, MaxAge: 2 * time.Hour, Linger: 12 * time.Hour,
		},
		Kubernetes: Kubernetes{Enabled: true},
		Targets:    Targets{AllowedAddresses: []string{"*.svc:*", "*.svc.cluster.local:*"}, DialTimeout: 10 * time.Second},
		MaxStreams: 1000,
	}
}

var podName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)

// Validate returns everything that is wrong.
func (c Config) Validate() []error {
	var faults []error
	if c.CredentialsFile == "" {
		faults = append(faults, config.Invalid("credentials_file", "is required: the file that was made when the agent was registered"))
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
		faults = append(faults, config.Invalid("urls", "is empty: write where a relay is, such as wss://relay.example"))
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

func (r Relay) pauses() link.Pauses { return link.Pauses{Min: r.RetryMin, Max: r.RetryMax} }

// tunnelURL is where an address of relays has its tunnels.
func tunnelURL(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil {
		return "", fmt.Errorf("%q is no URL", text)
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
		return "", fmt.Errorf("%q is not an address of relays, such as wss://relay.example:8090", u.Redacted())
	}
	return u.JoinPath("tunnel").String(), nil
}

// Validate checks that the files are there.
func (t TLS) Validate() []error {
	if (t.CertFile == "") != (t.KeyFile == "") {
		return []error{config.Invalid("", "cert_file and key_file come together")}
	}
	if _, err := t.load(); err != nil {
		return []error{config.Invalid("", "%v", err)}
	}
	return nil
}

// Validate checks the patterns and the time-out.
func (t Targets) Validate() []error {
	var faults []error
	if _, err := targets.ParseAllowed(t.AllowedAddresses); err != nil {
		faults = append(faults, config.Invalid("allowed_addresses", "%v", err))
	}
	if t.DialTimeout <= 0 {
		faults = append(faults, config.Invalid("dial_timeout", "%s is not a positive duration", t.DialTimeout))
	}
	return faults
}

// Program names the binary.
func Program() config.Program {
	return config.Program{
		Name: "lockstep-relay-agent",
		About: "The relay agent runs in a cluster that cannot be connected to. It dials relays and lets them reach the cluster's Kubernetes API, in the name of their callers, and the targets that " +
			"the agent's configuration names. It needs the agent's credentials file.",
	}
}
