package relay_test

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay"
	"lockstep.internal/services/relay/agent"
)

// Replicas of a relay with one configuration and one certificate reach each other by their own addresses.
func TestRelaysWithOneConfigurationReachEachOther(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	certificate, key := f.certificateOfExampleCom()
	configure := func(cfg *relay.Config) {
		cfg.Internal.Listen = ":0"
		cfg.Internal.TLS.CertFile, cfg.Internal.TLS.KeyFile, cfg.Internal.CAFile = certificate, key, certificate
		cfg.Internal.ServerName = "example.com"
	}
	var relays []*running
	var replicas []string // by connection
	for i := range 3 {
		r := f.relay(configure)
		pod := fmt.Sprintf("replica-%d", i)
		f.replicaWith(func(cfg *agent.Config) {
			cfg.Relay.URLs, cfg.Pod = []string{"ws://" + r.addrs["agents"]}, "lockstep/"+pod
		})
		relays, replicas = append(relays, r), append(replicas, f.connectionOf(pod))
	}
	for _, r := range relays {
		for _, connection := range replicas {
			status, body := f.get(r, agentID, "/", "Lockstep-Connection", connection)
			require.Equal(t, http.StatusOK, status, body)
		}
	}
}

// certificateOfExampleCom writes a self-signed certificate, which is not for the host name of this machine.
func (f *fixture) certificateOfExampleCom() (certificateFile, keyFile string) {
	f.t.Helper()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	f.t.Cleanup(server.Close)
	pair := server.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	require.NoError(f.t, err)
	write := func(name, kind string, raw []byte) string {
		file := filepath.Join(f.dir, name)
		require.NoError(f.t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw}), 0o600))
		return file
	}
	return write("relay.crt", "CERTIFICATE", pair.Certificate[0]), write("relay.key", "PRIVATE KEY", key)
}
