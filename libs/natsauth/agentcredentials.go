package natsauth

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/topology"
)

const maxCredentialsBytes = 256 << 10

// DefaultNamespacePrefix is the prefix of workspace namespaces, unless the cell is configured with another.
const DefaultNamespacePrefix = "ws-"

var namespacePrefix = regexp.MustCompile(`^[a-z0-9][a-z0-9-]*$`)

// ErrInvalidCredentials is wrapped by errors about agent credentials that cannot be used.
var ErrInvalidCredentials = errors.New("invalid agent credentials")

// AgentCredentials is the content of an agent's credentials file: addresses, identity and keys. Its JSON contains
// the secrets. String and LogValue hide them.
type AgentCredentials struct {
	// ServerURLs are one or more nats:// or tls:// URLs, or ws:// or wss:// URLs, without user and password.
	ServerURLs []string      `json:"server_urls"`
	Cell       topology.Cell `json:"cell"`
	AgentID    int64         `json:"agent_id"`
	// Token is of kind [TokenAgent].
	Token string `json:"token"`
	// CurveSeed is the X25519 nkey seed ("SX…") that secrets for this agent are sealed to.
	CurveSeed string `json:"curve_seed"`
	// SealerKey is the public X25519 nkey ("X…") of the sealer. Open verifies it.
	SealerKey string `json:"sealer_key"`
	// CA is the PEM of the servers' CA. Defaults to the system's roots.
	CA string `json:"ca,omitempty"`
	// NamespacePrefix is that of the namespaces of workspaces. A file without it has [DefaultNamespacePrefix].
	NamespacePrefix string `json:"namespace_prefix,omitempty"`
}

// validateServerURL checks an address of NATS for agents. The error does not contain a password.
func validateServerURL(raw string) error {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return errors.New("contains an invalid URL")
	case u.User != nil:
		return fmt.Errorf("the URL of %s contains a user; agents use the field token", u.Host)
	case !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme) || u.Hostname() == "":
		return fmt.Errorf("%q is not nats://host:port, tls://host:port or wss://host", raw)
	}

	return nil
}

// ValidateServerURLs checks the addresses of NATS for agents.
func ValidateServerURLs(all []string) error {
	var errs []error

	webSockets := 0

	for _, raw := range all {
		errs = append(errs, validateServerURL(raw))

		if strings.HasPrefix(raw, "ws") {
			webSockets++
		}
	}

	if webSockets > 0 && webSockets < len(all) {
		errs = append(errs, errors.New("some of the URLs are of WebSockets (ws, wss), and some are not"))
	}

	return errors.Join(errs...)
}

// Validate returns all errors at once.
func (c AgentCredentials) Validate() error {
	var errs []error

	fault := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrInvalidCredentials}, args...)...))
	}

	if len(c.ServerURLs) == 0 {
		fault("server_urls is empty")
	}

	if err := ValidateServerURLs(c.ServerURLs); err != nil {
		fault("server_urls: %w", err)
	}

	if err := topology.ValidateCell(string(c.Cell)); err != nil {
		fault("%w", err)
	}

	if c.AgentID <= 0 {
		fault("agent_id %d is not above zero", c.AgentID)
	}

	if _, err := HashToken(TokenAgent, c.Token); err != nil {
		fault("token: %w", err)
	}

	if err := checkCurveSeed(c.CurveSeed); err != nil {
		fault("curve_seed is not an X25519 nkey seed")
	}

	if !nkeys.IsValidPublicCurveKey(c.SealerKey) {
		fault("sealer_key is not a public X25519 nkey")
	}

	if c.NamespacePrefix != "" && !namespacePrefix.MatchString(c.NamespacePrefix) {
		fault("namespace_prefix %q is not a prefix of a namespace name such as ws-", c.NamespacePrefix)
	}

	if c.CA != "" && !x509.NewCertPool().AppendCertsFromPEM([]byte(c.CA)) {
		fault("ca holds no PEM certificate")
	}

	return errors.Join(errs...)
}

func checkCurveSeed(seed string) error {
	pair, err := nkeys.FromCurveSeed([]byte(seed))
	if err != nil {
		return err //nolint:wrapcheck // replaced by the caller, it may quote the seed
	}

	pair.Wipe()

	return nil
}

// ConnectOptions returns the NATS options of an agent: user, inbox prefix, CA, unlimited reconnects. It also
// retries after a refusal, because the auth callout may be down, and connections expire within the hour. Add an
// error handler: without it a denied publish is only a timeout.
func (c AgentCredentials) ConnectOptions() ([]nats.Option, error) {
	return c.options(nats.UserInfo(c.user(), c.Token))
}

// ConnectOptionsFrom is ConnectOptions for the credentials in a file. Each connection reads the token from the file, so
// that a new token needs no restart. While the file cannot be used, the last token is.
func (c AgentCredentials) ConnectOptionsFrom(path string, logger *slog.Logger) ([]nats.Option, error) {
	token := c.Token

	return c.options(nats.UserInfoHandler(func() (string, string) {
		now, err := ReadAgentCredentials(path)
		if err == nil && now.AgentID != c.AgentID {
			err = fmt.Errorf("%s: is for agent %d: restart to use it", path, now.AgentID)
		}

		if err != nil {
			logger.Error("reading the agent's token again failed; using the last one",
				slog.Int64(logkey.AgentID, c.AgentID), logkey.Error(err))

			return c.user(), token
		}

		token = now.Token

		return c.user(), token
	}))
}

func (c AgentCredentials) user() string { return strconv.FormatInt(c.AgentID, 10) }

func (c AgentCredentials) options(authentication nats.Option) ([]nats.Option, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}

	options := []nats.Option{
		authentication,
		nats.CustomInboxPrefix(InboxPrefix(c.user())),
		nats.IgnoreAuthErrorAbort(),
		nats.MaxReconnects(-1),
	}

	if c.CA != "" {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM([]byte(c.CA))

		options = append(options, nats.Secure(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}))
	}

	return options, nil
}

// LogValue returns the identity without secrets.
func (c AgentCredentials) LogValue() slog.Value {
	return slog.GroupValue(
		slog.Any(logkey.ServerURLs, c.ServerURLs),
		slog.String(logkey.Cell, string(c.Cell)),
		slog.Int64(logkey.AgentID, c.AgentID),
	)
}

// String is [AgentCredentials.LogValue] as text.
func (c AgentCredentials) String() string { return c.LogValue().String() }

// GoString keeps %#v from printing secrets.
func (c AgentCredentials) GoString() string { return c.String() }

// WriteAgentCredentials writes the file atomically with mode 0600. It replaces an existing file.
func WriteAgentCredentials(path string, c AgentCredentials) error {
	if err := c.Validate(); err != nil {
		return err
	}

	content, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return fmt.Errorf("encode agent credentials: %w", err)
	}
	defer clear(content)

	temp, err := writeTemp(path, append(content, '\n'), keyFileMode)
	if err != nil {
		return fmt.Errorf("agent credentials: %w", err)
	}

	if err := os.Rename(temp, path); err != nil {
		return errors.Join(fmt.Errorf("agent credentials: %w", err), os.Remove(temp))
	}

	return nil
}

// ReadAgentCredentials reads and validates the file. It ignores unknown fields.
func ReadAgentCredentials(path string) (AgentCredentials, error) {
	file, err := os.Open(path)
	if err != nil {
		return AgentCredentials{}, fmt.Errorf("agent credentials: %w", err)
	}
	defer file.Close() //nolint:errcheck // only read

	content, err := io.ReadAll(io.LimitReader(file, maxCredentialsBytes+1))
	if err != nil {
		return AgentCredentials{}, fmt.Errorf("agent credentials: %w", err)
	}
	defer clear(content)

	if len(content) > maxCredentialsBytes {
		return AgentCredentials{}, fmt.Errorf("%w: %s is over %d bytes", ErrInvalidCredentials, path, maxCredentialsBytes)
	}

	c, err := ParseAgentCredentials(content)
	if err != nil {
		return AgentCredentials{}, fmt.Errorf("%s: %w", path, err)
	}

	return c, nil
}

// ParseAgentCredentials reads what [WriteAgentCredentials] wrote.
func ParseAgentCredentials(content []byte) (AgentCredentials, error) {
	var c AgentCredentials
	if err := json.Unmarshal(content, &c); err != nil {
		return AgentCredentials{}, fmt.Errorf("%w: not JSON: %w", ErrInvalidCredentials, err)
	}

	c.NamespacePrefix = cmp.Or(c.NamespacePrefix, DefaultNamespacePrefix)

	if err := c.Validate(); err != nil {
		return AgentCredentials{}, err
	}

	return c, nil
}
