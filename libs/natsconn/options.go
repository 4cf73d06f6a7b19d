package natsconn

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/proxy"
	"lockstep.internal/libs/retry"
)

// reconnectRetry bounds the pauses between rounds through the servers.
var reconnectRetry = retry.Policy{Min: 100 * time.Millisecond, Max: 5 * time.Second}

const (
	// A vanished peer is detected after about pingInterval × (maxPings + 1).
	pingInterval = 15 * time.Second
	maxPings     = 2
)

// options are those of the connection without the handlers.
func (c Config) options(logger *slog.Logger) ([]nats.Option, error) {
	options := []nats.Option{
		nats.Name(c.Name),
		nats.Timeout(c.ConnectTimeout),
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.CustomReconnectDelay(reconnectRetry.Delay),
		nats.IgnoreAuthErrorAbort(),
		nats.ReconnectBufSize(-1),
		nats.PingInterval(pingInterval),
		nats.MaxPingsOutstanding(maxPings),
		nats.PermissionErrOnSubscribe(true),
	}
	if c.isWebSocket() {
		// A proxy resolves the names. Behind one, only the given servers can be reached.
		options = append(options, nats.SetCustomDialer(webSocketDialer{c.isEncrypted(), c.ConnectTimeout}),
			nats.SkipHostLookup(), nats.IgnoreDiscoveredServers())
	}
	if c.InboxPrefix != "" {
		options = append(options, nats.CustomInboxPrefix(c.InboxPrefix))
	}
	if c.TLS.CAFile != "" {
		options = append(options, nats.RootCAs(c.TLS.CAFile))
	}
	if c.TLS.CertFile != "" {
		options = append(options, nats.ClientCert(c.TLS.CertFile, c.TLS.KeyFile))
	}
	if c.TLS.HandshakeFirst {
		options = append(options, nats.TLSHandshakeFirst())
	}
	credentials, err := c.credentials(logger)
	if err != nil {
		return nil, err
	}
	return append(options, credentials...), nil
}

// webSocketDialer dials through the proxy of the environment.
type webSocketDialer struct {
	encrypted bool
	timeout   time.Duration
}

// Dial implements [nats.CustomDialer].
func (d webSocketDialer) Dial(_, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), d.timeout)
	defer cancel()
	return proxy.Dial(ctx, address, d.encrypted)
}

// credentials returns options that read the secret files at every connection.
func (c Config) credentials(logger *slog.Logger) ([]nats.Option, error) {
	read := func(key string, secret config.Secret) string {
		value, err := secret.Read()
		if err != nil {
			logger.Error("NATS credentials not read", slog.String(logkey.Key, key), logkey.Error(err))
		}
		return value
	}
	switch {
	case c.NKeySeedFile.IsSet():
		public, err := c.publicKey()
		if err != nil {
			return nil, err
		}
		return []nats.Option{nats.Nkey(public, func(nonce []byte) ([]byte, error) {
			pair, err := keyPair(c.NKeySeedFile)
			if err != nil {
				return nil, err
			}
			defer pair.Wipe()
			return pair.Sign(nonce)
		})}, nil
	case c.User != "":
		return []nats.Option{nats.UserInfoHandler(func() (string, string) {
			return c.User, read("password_file", c.PasswordFile)
		})}, nil
	case c.TokenFile.IsSet():
		return []nats.Option{nats.TokenHandler(func() string { return read("token_file", c.TokenFile) })}, nil
	case c.CredentialsFile != "":
		return []nats.Option{nats.UserCredentials(c.CredentialsFile)}, nil
	default:
		return nil, nil
	}
}

// publicKey returns the public key of the nkey seed, or "" if there is no seed.
func (c Config) publicKey() (string, error) {
	if !c.NKeySeedFile.IsSet() {
		return "", nil
	}
	pair, err := keyPair(c.NKeySeedFile)
	if err != nil {
		return "", err
	}
	defer pair.Wipe()
	public, err := pair.PublicKey()
	if err != nil {
		return "", fmt.Errorf("nkey seed: %w", err)
	}
	return public, nil
}

func keyPair(seed config.Secret) (nkeys.KeyPair, error) {
	text, err := seed.Read()
	if err != nil {
		return nil, fmt.Errorf("nkey seed: %w", err)
	}
	pair, err := nkeys.FromSeed([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("nkey seed: %w", err)
	}
	return pair, nil
}
