package natsconn

import (
	"net/url"
	"os"
	"strings"
	"time"

	"lockstep.internal/libs/certpool"
	"lockstep.internal/libs/config"
)

// Config is the part `nats` of every service's configuration.
type Config struct {
	URL             config.URL    `yaml:"url" help:"NATS servers, comma-separated: nats://host:4222, tls://host:4222, or with WebSockets wss://host:443 or ws://host:80, through the proxy of HTTPS_PROXY or HTTP_PROXY"`
	NKeySeedFile    config.Secret `yaml:"nkey_seed_file" help:"file with the nkey seed for authentication"`
	User            string        `yaml:"user" help:"user name, together with password_file"`
	PasswordFile    config.Secret `yaml:"password_file" help:"file with the password of user"`
	TokenFile       config.Secret `yaml:"token_file" help:"file with an authentication token"`
	CredentialsFile string        `yaml:"credentials_file" help:"NATS credentials file with a user JWT and its seed"`
	TLS             TLS           `yaml:"tls" help:"NATS over TLS; used when the URL or the server requires it"`
	InboxPrefix     string        `yaml:"inbox_prefix" help:"subject prefix of replies, if permissions allow only one"`
	ConnectTimeout  time.Duration `yaml:"connect_timeout" help:"timeout of one connection attempt"`

	// Name of the connection, shown by the server; the service sets it.
	Name string `yaml:"-"`
}

// TLS configures the trusted CAs and the client certificate. The files are read at each connection.
type TLS struct {
	CAFile         string `yaml:"ca_file" help:"PEM file with trusted CA certificates; empty = those of the system"`
	CertFile       string `yaml:"cert_file" help:"PEM file with the client certificate"`
	KeyFile        string `yaml:"key_file" help:"PEM file with the private key of the client certificate"`
	HandshakeFirst bool   `yaml:"handshake_first" help:"start the TLS handshake before the server's INFO message; the server needs handshake_first"`
}

// DefaultConfig connects to the local server without credentials.
func DefaultConfig() Config {
	return Config{URL: "nats://127.0.0.1:4222", ConnectTimeout: 3 * time.Second}
}

// Validate checks the addresses, that at most one kind of credentials is given, and the inbox
// prefix.
func (c Config) Validate() []error {
	var errs []error
	for address := range strings.SplitSeq(c.URL.Reveal(), ",") {
		if !validAddress(strings.TrimSpace(address)) {
			errs = append(errs, config.Invalid("url", "%q is not an address such as nats://127.0.0.1:4222", config.URL(address)))
		}
	}
	if (c.User == "") != !c.PasswordFile.IsSet() {
		errs = append(errs, config.Invalid("user", "set user and password_file together"))
	}
	var given []string
	for key, set := range map[string]bool{
		"user":             c.User != "",
		"nkey_seed_file":   c.NKeySeedFile.IsSet(),
		"token_file":       c.TokenFile.IsSet(),
		"credentials_file": c.CredentialsFile != "",
	} {
		if set {
			given = append(given, key)
		}
	}
	if len(given) > 1 {
		errs = append(
			errs,
			config.Invalid(
				"", "more than one kind of credentials: set only one of user, nkey_seed_file, token_file, credentials_file",
			),
		)
	}
	if c.CredentialsFile != "" {
		errs = append(errs, readable("credentials_file", c.CredentialsFile))
	}
	if c.InboxPrefix != "" && !validPrefix(c.InboxPrefix) {
		errs = append(
			errs, config.Invalid("inbox_prefix", "%q is not a subject without wildcards, such as _INBOX_42", c.InboxPrefix),
		)
	}
	if c.ConnectTimeout <= 0 {
		errs = append(errs, config.Invalid("connect_timeout", "%s is not a positive duration", c.ConnectTimeout))
	}
	return errs
}

// Validate checks that the files can be read and that certificate and key come together.
func (t TLS) Validate() []error {
	var errs []error
	if (t.CertFile == "") != (t.KeyFile == "") {
		errs = append(errs, config.Invalid("", "set cert_file and key_file together"))
	}
	if t.CAFile != "" {
		if _, err := certpool.Load(t.CAFile); err != nil {
			errs = append(errs, config.Invalid("ca_file", "%v", err))
		}
	}
	for key, path := range map[string]string{"cert_file": t.CertFile, "key_file": t.KeyFile} {
		if path != "" {
			errs = append(errs, readable(key, path))
		}
	}
	return errs
}

// isWebSocket reports whether the servers are reached with WebSockets. The client refuses a mixture.
func (c Config) isWebSocket() bool {
	return c.isEncrypted() || strings.HasPrefix(c.firstURL(), "ws://")
}

func (c Config) isEncrypted() bool { return strings.HasPrefix(c.firstURL(), "wss://") }

func (c Config) firstURL() string {
	first, _, _ := strings.Cut(c.URL.Reveal(), ",")
	return strings.ToLower(strings.TrimSpace(first))
}

func readable(key, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return config.Invalid(key, "cannot be read: %v", err)
	}
	_ = file.Close() // only read
	return nil
}

func validAddress(address string) bool {
	if !strings.Contains(address, "://") {
		address = "nats://" + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" {
		return false
	}
	switch u.Scheme {
	case "nats", "tls", "ws", "wss":
		return true
	default:
		return false
	}
}

func validPrefix(prefix string) bool {
	for token := range strings.SplitSeq(prefix, ".") {
		if token == "" || strings.ContainsAny(token, "*> \t\r\n") {
			return false
		}
	}
	return true
}
