package agent_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	conf "lockstep.internal/libs/config"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/services/relay/agent"
	"lockstep.internal/services/relay/tunnel"
)

func TestInvalidConfigs(t *testing.T) {
	t.Parallel()
	token := natsauth.NewToken(natsauth.TokenAgent)
	pair := newCertificate(t)
	for name, c := range map[string]struct {
		change     func(*agent.Config)
		wantErrors []string
	}{
		"valid": {func(*agent.Config) {}, nil},
		"all URL schemes": {
			func(c *agent.Config) { c.Relay.URLs = []string{"ws://a:1", "wss://b", "http://c/", "https://d/e"} }, nil,
		},
		"TLS": {func(c *agent.Config) { c.Relay.URLs, c.Relay.TLS = []string{"wss://b"}, pair.files }, nil},
		"no credentials": {
			func(c *agent.Config) { c.CredentialsFile = "" },
			[]string{"LOCKSTEP_CREDENTIALS_FILE, --credentials-file): is required"},
		},
		"bad credentials": {
			func(c *agent.Config) { c.CredentialsFile = pair.files.CAFile },
			[]string{"invalid agent credentials"},
		},
		"no relay": {func(c *agent.Config) { c.Relay.URLs = nil }, []string{"is empty: set the address of a relay"}},
		"invalid URLs": {func(c *agent.Config) {
			c.Relay.URLs = []string{"relay:8090", "nats://x", "ws://", "ws://u:p@x", "ws://x?a=b"}
		}, []string{`"relay:8090" is not the address`, `"ws://u:xxxxx@x"`}},
		"TLS without wss": {
			func(c *agent.Config) { c.Relay.TLS = pair.files },
			[]string{"none of relay.urls begins with wss"},
		},
		"certificate without key": {
			func(c *agent.Config) { c.Relay.URLs, c.Relay.TLS.CertFile = []string{"wss://b"}, pair.files.CertFile },
			[]string{"cert_file and key_file must be set together"},
		},
		"CA file without a certificate": {
			func(c *agent.Config) { c.Relay.URLs, c.Relay.TLS.CAFile = []string{"wss://b"}, pair.files.KeyFile },
			[]string{"contains no certificate"},
		},
		"missing CA file": {
			func(c *agent.Config) { c.Relay.URLs, c.Relay.TLS.CAFile = []string{"wss://b"}, "/nowhere" },
			[]string{"read CA certificates"},
		},
		"counts": {
			func(c *agent.Config) { c.Relay.Connections, c.MaxStreams = 0, 0 },
			[]string{"relay.connections", "max_streams"},
		},
		"durations": {func(c *agent.Config) {
			c.Relay.RetryMin, c.Relay.MaxAge, c.Relay.Linger, c.Targets.DialTimeout = 0, -1, 0, 0
		}, []string{"relay.retry_min", "relay.max_age", "relay.linger", "targets.dial_timeout"}},
		"retry_max below retry_min": {
			func(c *agent.Config) { c.Relay.RetryMax = time.Millisecond },
			[]string{"relay.retry_max"},
		},
		"invalid pattern": {
			func(c *agent.Config) { c.Targets.AllowedAddresses = []string{"*.svc"} },
			[]string{`"*.svc" is not host:port`},
		},
		"invalid pod": {func(c *agent.Config) { c.Pod = "agent-0" }, []string{"is not namespace/name"}},
		"kubeconfig without effect": {
			func(c *agent.Config) { c.Kubernetes.Kubeconfig = "x" },
			[]string{"no effect without kubernetes.enabled"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := newConfig(t, token)
			cfg.Relay.URLs = []string{"ws://127.0.0.1:1"}
			c.change(&cfg)
			binding, err := conf.Bind(&cfg, "")
			require.NoError(t, err)
			err = binding.Validate()
			if c.wantErrors == nil {
				require.NoError(t, err)
				return
			}
			for _, text := range c.wantErrors {
				require.ErrorContains(t, err, text)
			}
			require.Error(t, agent.Main(t.Context(), cfg), "Main validates the configuration, too")
		})
	}
}

func TestDefaultsNeedOnlyCredentials(t *testing.T) {
	t.Parallel()
	cfg := agent.DefaultConfig()
	cfg.CredentialsFile = writeCredentials(t, "", natsauth.NewToken(natsauth.TokenAgent))
	binding, err := conf.Bind(&cfg, "")
	require.NoError(t, err)
	require.NoError(t, binding.Validate())
	manual := binding.Manual(agent.Program())
	require.Contains(t, manual, "LOCKSTEP_RELAY_URLS")
	require.Contains(t, manual, "ws://127.0.0.1:8090")
}

// certificate is a self-signed certificate for client and server.
type certificate struct {
	files agent.TLS
	pair  tls.Certificate
	pool  *x509.CertPool
}

func newCertificate(t *testing.T) certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true,
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	rawKey, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	dir := t.TempDir()
	c := certificate{
		files: agent.TLS{
			CAFile: filepath.Join(dir, "ca"), CertFile: filepath.Join(dir, "cert"), KeyFile: filepath.Join(dir, "key"),
		},
		pool: x509.NewCertPool(),
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: rawKey})
	files := map[string][]byte{c.files.CAFile: certPEM, c.files.CertFile: certPEM, c.files.KeyFile: keyPEM}
	for file, content := range files {
		require.NoError(t, os.WriteFile(file, content, 0o600))
	}
	c.pair, err = tls.X509KeyPair(certPEM, keyPEM)
	require.NoError(t, err)
	c.pool.AppendCertsFromPEM(certPEM)
	return c
}

func TestMutualTLS(t *testing.T) {
	t.Parallel()
	token := natsauth.NewToken(natsauth.TokenAgent)
	own, other := newCertificate(t), newCertificate(t)
	r, echo := newRelay(t, token), newTarget(t)
	r.kill()
	r.open(&tls.Config{
		Certificates: []tls.Certificate{own.pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: own.pool,
		MinVersion: tls.VersionTLS12,
	})
	r.configure(echo.configuration(1))
	cfg := newConfig(t, token, r)
	cfg.Relay.URLs = []string{"https://" + r.addr}
	for name, c := range map[string]struct {
		files   agent.TLS
		wantErr string
	}{
		"no CA": {agent.TLS{}, "certificate signed by unknown authority"},
		"wrong CA": {
			agent.TLS{CAFile: other.files.CAFile}, "certificate signed by unknown authority",
		},
		"no client certificate": {agent.TLS{CAFile: own.files.CAFile}, "certificate required"},
		"untrusted client certificate": {
			agent.TLS{CAFile: own.files.CAFile, CertFile: other.files.CertFile, KeyFile: other.files.KeyFile}, "certificate",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := cfg
			cfg.Relay.TLS = c.files
			start(t, cfg).waitFor("/readyz", http.StatusServiceUnavailable, c.wantErr)
		})
	}
	t.Run("both are trusted", func(t *testing.T) {
		t.Parallel()
		cfg := cfg
		cfg.Relay.TLS = own.files
		start(t, cfg).waitFor("/metrics", http.StatusOK, "lockstep_relay_agent_config_revision 1")
		s := r.stream("echo")
		requireEcho(t, s)
		s.Reset(tunnel.Cancelled, "no longer needed")
	})
}
