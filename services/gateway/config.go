package gateway

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/time/rate"

	"lockstep.internal/libs/certpool"
	"lockstep.internal/libs/config"
	"lockstep.internal/libs/natsconn"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/gateway/address"
	"lockstep.internal/services/gateway/authority"
	"lockstep.internal/services/gateway/dial"
	"lockstep.internal/services/gateway/session"
	"lockstep.internal/services/gateway/signin"
	"lockstep.internal/services/gateway/sshfront"
)

// Config of the gateway.
type Config struct {
	service.Config `yaml:",inline"`

	Telemetry  telemetry.Config `yaml:"telemetry"`
	Zone       string           `yaml:"zone" help:"DNS name below which each port of each workspace has a name, such as ws.example.com; with a port if browsers reach the gateway at another than 443. It needs a wildcard record and a wildcard certificate"`
	Web        WebConfig        `yaml:"web"`
	SSH        SSHConfig        `yaml:"ssh"`
	SignIn     SignInConfig     `yaml:"sign_in"`
	Workspaces WorkspacesConfig `yaml:"workspaces"`
	Cell       CellConfig       `yaml:"cell"`
	NATS       natsconn.Config  `yaml:"nats"`
	Relay      RelayConfig      `yaml:"relay"`
	State      StateConfig      `yaml:"state"`
}

// CellConfig names the cell.
type CellConfig struct {
	Name string `yaml:"name" help:"name of the cell, a DNS label: the second token of every subject"`
}

// WebConfig is the listener for browsers.
type WebConfig struct {
	service.Listener `yaml:",inline"`

	TrustedProxies []string `yaml:"trusted_proxies" help:"networks of proxies in front of the gateway, such as 10.0.0.0/8, whose X-Forwarded-For counts. Without web.tls, a proxy must terminate TLS: browsers reach the gateway by https only"`
}

// SSHConfig is the SSH server for people.
type SSHConfig struct {
	Listen         string        `yaml:"listen" help:"address of the SSH server"`
	Address        string        `yaml:"address" help:"host:port at which people reach it; empty = the zone and the port of listen"`
	HostKeyFile    config.Secret `yaml:"host_key_file" help:"file with private keys of the SSH server, as ssh-keygen writes them; all replicas need the same ones"`
	TrustedProxies []string      `yaml:"trusted_proxies" help:"networks of load balancers that send the PROXY protocol: they must, and nobody else may; empty = no PROXY protocol"`
	MaxConnections int           `yaml:"max_connections" help:"maximum connections; others are closed at once"`
	MaxChannels    int           `yaml:"max_channels" help:"maximum sessions and forwarded connections of one connection"`
	Handshake      time.Duration `yaml:"handshake_timeout" help:"time until a client must have authenticated"`
	MaxAttempts    int           `yaml:"max_attempts" help:"attempts to authenticate, of one connection"`
	FailureRate    float64       `yaml:"failure_rate" help:"wrong passwords that one address may send per second, after failure_burst"`
	FailureBurst   int           `yaml:"failure_burst" help:"wrong passwords that one address may send at once"`
}

// SignInConfig is how people sign in.
type SignInConfig struct {
	KeysFile         config.Secret `yaml:"keys_file" help:"file with the keys that encrypt cookies, 32 bytes in base64 each, one a line, the newest first: openssl rand -base64 32; all replicas need the same ones. It is read again when it changes"`
	Lifetime         time.Duration `yaml:"lifetime" help:"time after which people must sign in again, at most 24h"`
	TokenLifetime    time.Duration `yaml:"token_lifetime" help:"lifetime of the tokens that lockstep login creates"`
	PersonKeyFile    config.Secret `yaml:"person_key_file" help:"file with the Ed25519 key with which the gateway acts for people at the state service, which knows its public key: ssh-keygen -t ed25519"`
	Issuer           string        `yaml:"issuer" help:"URL of the OpenID Connect provider; empty = none: people sign in with lockstep ws open"`
	ClientID         string        `yaml:"client_id" help:"id of the gateway at the provider"`
	ClientSecretFile config.Secret `yaml:"client_secret_file" help:"file with the secret of the gateway at the provider; its redirect URI is https://sign-in.<zone>/callback"`
	Scopes           []string      `yaml:"scopes" help:"scopes besides openid"`
	LoginClaim       string        `yaml:"login_claim" help:"claim with the username in Lockstep; the provider must not let people choose it"`
	CAFile           string        `yaml:"ca_file" help:"PEM file with the CAs of the provider's certificate; empty = the system's"`
}

// WorkspacesConfig is how workspaces are reached.
type WorkspacesConfig struct {
	Mode             string        `yaml:"mode" help:"direct: the gateway runs in the cluster of the workspaces. tunnel: it reaches them through the relay and the relay agents of their clusters"`
	Domain           string        `yaml:"domain" help:"domain of the Services of workspaces, such as svc or svc.cluster.local; in the mode direct. In the mode tunnel, relay agents have their own targets.workspace_domain"`
	DNSServer        string        `yaml:"dns_server" help:"address and port of the DNS server of the cluster, such as 10.96.0.10:53; empty = the system's, for a gateway in the cluster"`
	ProcessInterval  time.Duration `yaml:"process_interval" help:"time between two questions to workspaces whose policy counts running processes, 1s to 1m"`
	AuthorityKeyFile config.Secret `yaml:"authority_key_file" help:"file with the SSH key that signs certificates for workspaces, whose configuration has its public key: ssh-keygen -t ed25519"`

	// DialContext connects to <name>.<namespace>.<domain>:<port>, for tests without a DNS server that has these names.
	// Defaults to that of [net.Dialer], with DNSServer.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error) `yaml:"-"`
}

// Modes of WorkspacesConfig.
const (
	ModeDirect = "direct"
	ModeTunnel = "tunnel"
)

// RelayConfig locates the relay.
type RelayConfig struct {
	URL       string        `yaml:"url" help:"address of the relay for callers, such as https://relay.example; required by workspaces.mode tunnel"`
	TokenFile config.Secret `yaml:"token_file" help:"file with a token of the gateway for the relay, whose external.callers_file permits it workspaces and nothing else: lockstep relay token. It is read for each connection, and a connection ends when its token expires"`
	CAFile    string        `yaml:"ca_file" help:"PEM file with the CAs of the relay's certificate; empty = the system's"`
}

// StateConfig locates the state service.
type StateConfig struct {
	URL    string `yaml:"url" help:"address of the API of the state service"`
	CAFile string `yaml:"ca_file" help:"PEM file with the CAs of its certificate; empty = the system's"`
}

const (
	defaultLifetime      = 12 * time.Hour
	maxLifetime          = 24 * time.Hour
	defaultTokenLifetime = 30 * 24 * time.Hour
	// Agents compare at most once a second. Idle workspaces may be stopped after two minutes.
	minProcessInterval = time.Second
	maxProcessInterval = time.Minute
)

// DefaultConfig returns the configuration for one machine. The zone, the keys and the NATS key have no default.
func DefaultConfig() Config {
	limits := sshfront.DefaultLimits()
	c := Config{
		Config:    service.DefaultConfig("127.0.0.1:8101"),
		Telemetry: telemetry.DefaultConfig(),
		Web:       WebConfig{Listener: service.DefaultListener("127.0.0.1:8100")},
		SSH: SSHConfig{
			Listen: "127.0.0.1:2222", MaxConnections: limits.Connections, MaxChannels: limits.Channels,
			Handshake: limits.Handshake, MaxAttempts: limits.Attempts, FailureRate: float64(limits.Rate),
			FailureBurst: limits.Burst,
		},
		SignIn: SignInConfig{
			Lifetime: defaultLifetime, TokenLifetime: defaultTokenLifetime, Scopes: []string{"profile", "email"},
			LoginClaim: "preferred_username",
		},
		Workspaces: WorkspacesConfig{Mode: ModeDirect, Domain: "svc", ProcessInterval: maxProcessInterval},
		Cell:       CellConfig{Name: "local"},
		NATS:       natsconn.DefaultConfig(),
		State:      StateConfig{URL: "http://127.0.0.1:8080"},
	}
	// Programs in workspaces limit bodies.
	c.Web.MaxBody, c.Web.MaxHeader = 0, 64*config.KiB
	c.Web.MaxHTTPConnections, c.Web.MaxHTTPRequests = 10_000, 10_000
	c.Web.MaxHTTPConnectionsPerHost, c.Web.MaxHTTPRequestsPerHost = 1000, 1000
	return c
}

// Validate returns all errors of the configuration. The embedded configurations validate themselves.
func (c Config) Validate() []error {
	var errs []error
	if err := topology.ValidateCell(c.Cell.Name); err != nil {
		errs = append(errs, config.Invalid("cell.name", "%v", err))
	}
	if _, err := address.ParseZone(c.Zone); err != nil {
		errs = append(errs, config.Invalid("zone", "%v", err))
	}
	if c.Web.MaxBody != 0 {
		errs = append(errs, config.Invalid("web.max_body", "programs in workspaces limit bodies: use 0"))
	}
	for key, check := range map[string]func() error{
		"web.trusted_proxies": func() error { _, err := networks(c.Web.TrustedProxies); return err },
		"ssh.trusted_proxies": func() error { _, err := networks(c.SSH.TrustedProxies); return err },
		"ssh.host_key_file":   func() error { _, err := hostKeys(c.SSH.HostKeyFile); return err },
		"sign_in.keys_file":   func() error { _, err := c.SignIn.keys(); return err },
		"sign_in.person_key_file": func() error {
			_, err := personKey(c.SignIn.PersonKeyFile)
			return err
		},
		"workspaces.authority_key_file": func() error { _, err := c.Workspaces.authority(); return err },
		"workspaces.dns_server":         c.Workspaces.checkDNSServer,
		"state.url":                     func() error { return checkURL(c.State.URL) },
		"state.ca_file":                 func() error { return checkPool(c.State.CAFile) },
		"sign_in.ca_file":               func() error { return checkPool(c.SignIn.CAFile) },
	} {
		if err := check(); err != nil {
			errs = append(errs, config.Invalid(key, "%v", err))
		}
	}
	errs = append(errs, c.validateRelay()...)
	return append(errs, c.SignIn.validateProvider()...)
}

func (c Config) validateRelay() []error {
	isSet := c.Relay.URL != "" || c.Relay.TokenFile.IsSet() || c.Relay.CAFile != ""
	switch c.Workspaces.Mode {
	case ModeTunnel:
	case ModeDirect:
		if isSet {
			return []error{config.Invalid("relay", "has no effect: workspaces.mode is %s", ModeDirect)}
		}
		return nil
	default:
		return []error{config.Invalid("workspaces.mode", "%q is neither %s nor %s", c.Workspaces.Mode, ModeDirect,
			ModeTunnel)}
	}
	var errs []error
	if err := checkPool(c.Relay.CAFile); err != nil {
		errs = append(errs, config.Invalid("relay.ca_file", "%v", err))
	}
	if _, err := dial.NewTunnel(c.Relay.URL, nil, nil); err != nil {
		errs = append(errs, config.Invalid("relay.url", "%v", err))
	}
	if !c.Relay.TokenFile.IsSet() {
		errs = append(errs, config.Invalid("relay.token_file", "is required: create the token with lockstep relay token"))
	}
	return errs
}

// network returns the way to workspaces.
func (c Config) network() (dial.Network, error) {
	if c.Workspaces.Mode != ModeTunnel {
		return dial.Direct{Domain: c.Workspaces.Domain, DialContext: c.Workspaces.dial()}, nil
	}
	var pool *x509.CertPool
	if c.Relay.CAFile != "" {
		var err error
		if pool, err = certpool.Load(c.Relay.CAFile); err != nil {
			return nil, fmt.Errorf("relay.ca_file: %w", err)
		}
	}
	tunnel, err := dial.NewTunnel(c.Relay.URL, pool, c.Relay.TokenFile.Read)
	if err != nil {
		return nil, fmt.Errorf("relay.url: %w", err)
	}
	return tunnel, nil
}

// Validate checks the limits.
func (c SSHConfig) Validate() []error {
	var errs []error
	for key, number := range map[string]int{
		"max_connections": c.MaxConnections, "max_channels": c.MaxChannels, "max_attempts": c.MaxAttempts,
		"failure_burst": c.FailureBurst,
	} {
		if number < 1 {
			errs = append(errs, config.Invalid(key, "%d is less than 1", number))
		}
	}
	if c.Handshake <= 0 {
		errs = append(errs, config.Invalid("handshake_timeout", "%s is not a positive duration", c.Handshake))
	}
	if c.FailureRate <= 0 {
		errs = append(errs, config.Invalid("failure_rate", "%v is not positive", c.FailureRate))
	}
	return errs
}

func (c SSHConfig) limits() sshfront.Limits {
	return sshfront.Limits{
		Connections: c.MaxConnections, Handshake: c.Handshake, Attempts: c.MaxAttempts, Rate: rate.Limit(c.FailureRate),
		Burst: c.FailureBurst, Channels: c.MaxChannels,
	}
}

// Validate checks the interval.
func (c WorkspacesConfig) Validate() []error {
	if c.ProcessInterval < minProcessInterval || c.ProcessInterval > maxProcessInterval {
		return []error{config.Invalid("process_interval", "%s is not from %s to %s", c.ProcessInterval,
			minProcessInterval, maxProcessInterval)}
	}
	return nil
}

// Validate checks the lifetimes.
func (c SignInConfig) Validate() []error {
	var errs []error
	if c.Lifetime <= 0 || c.Lifetime > maxLifetime {
		errs = append(errs, config.Invalid("lifetime", "%s is not positive, or above %s", c.Lifetime, maxLifetime))
	}
	if c.TokenLifetime <= 0 {
		errs = append(errs, config.Invalid("token_lifetime", "%s is not a positive duration", c.TokenLifetime))
	}
	return errs
}

func (c SignInConfig) validateProvider() []error {
	if c.Issuer == "" {
		return nil
	}
	var errs []error
	if err := checkURL(c.Issuer); err != nil {
		errs = append(errs, config.Invalid("sign_in.issuer", "%v", err))
	}
	if c.ClientID == "" || !c.ClientSecretFile.IsSet() || c.LoginClaim == "" {
		errs = append(errs, config.Invalid("sign_in.issuer",
			"needs sign_in.client_id, sign_in.client_secret_file and sign_in.login_claim"))
	}
	return errs
}

func (c SignInConfig) keys() (session.Keys, error) {
	text, err := c.KeysFile.Read()
	if err != nil {
		return session.Keys{}, err
	}
	return session.ParseKeys(text)
}

func (c SignInConfig) provider() (signin.Provider, error) {
	if c.Issuer == "" {
		return signin.Provider{}, nil
	}
	secret, err := c.ClientSecretFile.Read()
	if err != nil {
		return signin.Provider{}, fmt.Errorf("sign_in.client_secret_file: %w", err)
	}
	return signin.Provider{
		Issuer: c.Issuer, ClientID: c.ClientID, ClientSecret: secret, Scopes: c.Scopes, LoginClaim: c.LoginClaim,
	}, nil
}

func (c WorkspacesConfig) authority() (*authority.Authority, error) {
	text, err := c.AuthorityKeyFile.Read()
	if err != nil {
		return nil, err
	}
	return authority.Parse([]byte(text + "\n"))
}

func (c WorkspacesConfig) checkDNSServer() error {
	if c.DNSServer == "" {
		return nil
	}
	if _, err := netip.ParseAddrPort(c.DNSServer); err != nil {
		return fmt.Errorf("%q is not an address and a port such as 10.96.0.10:53", c.DNSServer)
	}
	return nil
}

// dial returns the function that connects to workspaces.
func (c WorkspacesConfig) dial() func(ctx context.Context, network, address string) (net.Conn, error) {
	switch {
	case c.DialContext != nil:
		return c.DialContext
	case c.DNSServer == "":
		return new(net.Dialer).DialContext
	}
	var toServer net.Dialer
	dialer := &net.Dialer{Resolver: &net.Resolver{
		PreferGo: true,
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return toServer.DialContext(ctx, network, c.DNSServer)
		},
	}}
	return dialer.DialContext
}

// hostKeys reads one or more private keys, one after the other.
func hostKeys(file config.Secret) ([]ssh.Signer, error) {
	text, err := file.Read()
	if err != nil {
		return nil, err
	}
	var keys []ssh.Signer
	for rest := []byte(text + "\n"); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		key, err := ssh.ParsePrivateKey(pem.EncodeToMemory(block))
		if err != nil {
			return nil, fmt.Errorf("key %d: %w", len(keys)+1, err)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, errors.New("there is no private key in the file: create one with ssh-keygen -t ed25519")
	}
	return keys, nil
}

func personKey(file config.Secret) (ed25519.PrivateKey, error) {
	text, err := file.Read()
	if err != nil {
		return nil, err
	}
	key, err := ssh.ParseRawPrivateKey([]byte(text + "\n"))
	if err != nil {
		return nil, fmt.Errorf("read the private key: %w", err)
	}
	private, ok := key.(*ed25519.PrivateKey)
	if !ok {
		return nil, errors.New("it is not an Ed25519 key: create one with ssh-keygen -t ed25519")
	}
	return *private, nil
}

func networks(texts []string) ([]netip.Prefix, error) {
	prefixes := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		var err error
		if prefixes[i], err = netip.ParsePrefix(text); err != nil {
			return nil, fmt.Errorf("%q is not a network such as 10.0.0.0/8", text)
		}
	}
	return prefixes, nil
}

func checkURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("%q is not a URL such as https://state.example", text)
	}
	return nil
}

func checkPool(file string) error {
	if file == "" {
		return nil
	}
	_, err := certpool.Load(file)
	return err
}

// client returns a client that trusts the CAs of a file, or else those of the system.
func client(caFile string) (*http.Client, error) {
	transport, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return nil, errors.New("the default transport of HTTP was replaced")
	}
	transport = transport.Clone()
	if caFile != "" {
		pool, err := certpool.Load(caFile)
		if err != nil {
			return nil, fmt.Errorf("load CAs: %w", err)
		}
		transport.TLSClientConfig.RootCAs = pool
	}
	const timeout = 30 * time.Second
	return &http.Client{Transport: transport, Timeout: timeout}, nil
}
