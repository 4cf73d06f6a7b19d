package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

const (
	// bedAgent is the agent that leads to the target, fleetAgent the first of many.
	bedAgent   = int64(7)
	fleetAgent = int64(1001)
)

// relayBed is a target, and what leads to it. All of it speaks TLS, or none; what is behind an agent never does, as within a cluster.
type relayBed struct {
	certified

	parts  *fixture
	dir    string
	tls    *tls.Config
	target *child
	serial int
}

func newRelayBed(ctx context.Context, parts *fixture, secure bool) (*relayBed, error) {
	dir, err := parts.folder()
	if err != nil {
		return nil, err
	}
	b := &relayBed{parts: parts, dir: dir}
	cert, err := certify(dir)
	if err != nil {
		return nil, err
	}
	if secure {
		b.certified = cert
	}
	if b.tls, err = b.client(); err != nil {
		return nil, err
	}
	b.target, err = b.start(ctx, childTarget, cert)
	return b, err
}

// start starts a child with a configuration. Each has a name of its own.
func (b *relayBed) start(ctx context.Context, kind string, cfg any) (*child, error) {
	raw, err := json.Marshal(cfg)
	if err != nil {
		return nil, fmt.Errorf("write the configuration of the %s: %w", kind, err)
	}
	return b.parts.start(ctx, b.dir, b.named(kind), string(raw))
}

// named makes a name for a child.
func (b *relayBed) named(kind string) string {
	b.serial++
	return fmt.Sprintf("%s.%d", kind, b.serial)
}

// direct is the way without any relay.
func (b *relayBed) direct() way {
	if b.tls != nil {
		return way{name: "the direct connection", http: b.target.addrs[targetHTTPS], stream: b.target.addrs[targetStreamsTLS], kube: b.target.addrs[targetKube], caFile: b.CAFile, tls: b.tls}
	}
	return way{name: "the direct connection", http: b.target.addrs[targetHTTP], stream: b.target.addrs[targetStream]}
}

// ways are ours, the direct one, the peer's, and that of copies, in this order.
func (b *relayBed) ways(ctx context.Context, hops int) ([]way, error) {
	ours, err := b.lockstep(ctx, hops)
	if err != nil {
		return nil, err
	}
	peer, err := b.remotedialer(ctx, hops)
	if err != nil {
		return nil, err
	}
	for _, r := range []*relays{ours, peer} {
		if err := r.agent(ctx, r); err != nil {
			return nil, err
		}
	}
	copied, err := b.copied(ctx, hops)
	if err != nil {
		return nil, err
	}
	ways := []way{ours.way(bedAgent), b.direct(), peer.way(bedAgent), copied}
	for _, w := range ways {
		if err := w.reached(ctx); err != nil { // a relay may not know yet what another one has
			return nil, err
		}
		if b.tls != nil && hops == 1 {
			if err := w.reachedKube(ctx); err != nil {
				return nil, err
			}
		}
	}
	return ways, nil
}

// relays of one kind, one or two, in which callers come to the first and agents to the last.
type relays struct {
	name  string
	bed   *relayBed
	first *child
	last  *child
	// header lines of callers, and their token.
	header, bearer string
	// path of where agents connect, and the token that they have.
	path, token string
	// start starts one that listens for agents at an address, agent the agent that leads to the target.
	start func(ctx context.Context, address string) (*child, error)
	agent func(ctx context.Context, r *relays) error
	// enter makes agents known; nil where they need not be.
	enter func(ctx context.Context, first int64, n int) error
}

// address is where agents connect, without its path.
func (r *relays) address() string { return r.bed.scheme() + r.last.addrs[relayAgents] }

func (b *relayBed) scheme() string {
	if b.tls != nil {
		return "wss://"
	}
	return "ws://"
}

// way to the target behind an agent.
func (r *relays) way(agent int64) way {
	external := r.first.addrs[relayExternal]
	return way{
		name: r.name, http: external, stream: external, path: agentPath(agent), tls: r.bed.tls, header: r.header,
		kube: external + agentPath(agent) + "/kubernetes", token: r.bearer, caFile: r.bed.CAFile,
	}
}

// restart stops the only relay and starts one where it was, and returns when that was started.
func (r *relays) restart(ctx context.Context) (time.Time, error) {
	address := r.last.addrs[relayAgents]
	if err := r.last.stop(); err != nil {
		return time.Time{}, err
	}
	began := time.Now()
	var err error
	r.last, err = r.start(ctx, address)
	r.first = r.last
	return began, err
}

func (b *relayBed) remotedialer(ctx context.Context, hops int) (*relays, error) {
	cfg := peerRelay{
		certified: b.certified, ID: "b", HTTP: b.target.addrs[targetHTTP], Stream: b.target.addrs[targetStream], Kube: b.target.addrs[targetKube],
	}
	r := &relays{name: peerName, bed: b}
	r.start = func(ctx context.Context, address string) (*child, error) {
		cfg.Agents = address
		return b.start(ctx, childPeerRelay, cfg)
	}
	r.agent = func(ctx context.Context, r *relays) error {
		_, err := b.start(ctx, childPeerAgent, peerAgent{certified: b.certified, URL: r.address(), Agent: strconv.FormatInt(bedAgent, 10)})
		return err
	}
	address := loopback
	var err error
	if hops > 1 {
		// The one that has the agent connects to the other one and tells of it. Each must know the other, so the address of the later one is set first.
		if address, err = freeAddress(ctx); err != nil {
			return nil, err
		}
		first := cfg
		first.ID, first.PeerID, first.PeerURL, first.Agents = "a", cfg.ID, b.scheme()+address, loopback
		if r.first, err = b.start(ctx, childPeerRelay, first); err != nil {
			return nil, err
		}
		cfg.PeerID, cfg.PeerURL = first.ID, b.scheme()+r.first.addrs[relayAgents]
	}
	if r.last, err = r.start(ctx, address); err != nil {
		return nil, err
	}
	if hops == 1 {
		r.first = r.last
	}
	return r, nil
}

func freeAddress(ctx context.Context) (string, error) {
	var listening net.ListenConfig
	l, err := listening.Listen(ctx, "tcp", loopback)
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	if err := l.Close(); err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	return l.Addr().String(), nil
}

// certify makes a certificate for the loopback address that is its own authority.
func certify(dir string) (certified, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return certified{}, fmt.Errorf("make a key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bench"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return certified{}, fmt.Errorf("make a certificate: %w", err)
	}
	rawKey, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return certified{}, fmt.Errorf("write the key: %w", err)
	}
	c := certified{CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem")}
	c.CAFile = c.CertFile
	return c, errors.Join(
		os.WriteFile(c.CertFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}), 0o600),
		os.WriteFile(c.KeyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: rawKey}), 0o600))
}
