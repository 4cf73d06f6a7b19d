package agent

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"strconv"

	"lockstep.internal/libs/certpool"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/service"
	"lockstep.internal/services/relay/agentlistener"
	"lockstep.internal/services/relay/tunnel"
)

// load reads the certificates.
func (t TLS) load() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.CAFile != "" {
		pool, err := certpool.Load(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("ca_file: %w", err)
		}
		cfg.RootCAs = pool
	}
	if t.CertFile != "" && t.KeyFile != "" {
		pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("cert_file: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

// dialer dials relays with the agent's credentials.
type dialer struct {
	agent       int64
	credentials string // file
	pod         string
	tls         TLS
}

// dial reads credentials and certificates again, so that replacing them needs no restart.
func (d dialer) dial(ctx context.Context, url string) (tunnel.Connection, error) {
	credentials, err := natsauth.ReadAgentCredentials(d.credentials)
	if err != nil {
		return tunnel.Connection{}, err
	}
	if credentials.AgentID != d.agent {
		return tunnel.Connection{}, fmt.Errorf("%s: is for agent %d, but this agent is %d: restart to use it",
			d.credentials, credentials.AgentID, d.agent)
	}
	tlsConfig, err := d.tls.load()
	if err != nil {
		return tunnel.Connection{}, err
	}
	header := http.Header{}
	header.Set("Authorization", "Bearer "+credentials.Token)
	header.Set(agentlistener.HeaderAgent, strconv.FormatInt(d.agent, 10))
	header.Set(agentlistener.HeaderVersion, service.Version())
	header.Set(agentlistener.HeaderCommit, service.Commit())
	if d.pod != "" {
		header.Set(agentlistener.HeaderPod, d.pod)
	}
	return tunnel.Dialer{TLS: tlsConfig}.Dial(ctx, url, header)
}
