package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/relay/auth"
	"lockstep.internal/tools/testkit/natsd"
)

const (
	// relaySecret is shared by relays, and by them and the service that calls them.
	relaySecret = "relays and the caller that measures them"
	// callerSubject is who calls.
	callerSubject = "bench"
	callerIssuer  = "lockstep"
	callerFor     = "relay"
	// callerLifetime is longer than any run.
	callerLifetime = 24 * time.Hour
)

// lockstepBed is what Lockstep's relays stand on: NATS, with what is known of agents, and files.
type lockstepBed struct {
	*relayBed

	nats   string
	js     jetstream.JetStream
	token  string // of all agents
	hash   natsauth.TokenHash
	secret string // file
	rules  string // file
}

func (b *relayBed) lockstep(ctx context.Context, hops int) (*relays, error) {
	l, err := b.newLockstepBed(ctx)
	if err != nil {
		return nil, err
	}
	signer, err := auth.NewSigner(auth.Config{Issuer: callerIssuer, Audience: callerFor, Secrets: [][]byte{[]byte(relaySecret)}, Lifetime: callerLifetime})
	if err != nil {
		return nil, fmt.Errorf("sign a token: %w", err)
	}
	token, err := signer.Sign(callerSubject)
	if err != nil {
		return nil, fmt.Errorf("sign a token: %w", err)
	}
	r := &relays{name: "Lockstep", bed: b, path: "/tunnel", header: "Authorization: Bearer " + token + "\r\n", bearer: token, token: l.token, enter: l.enter}
	r.start = func(ctx context.Context, address string) (*child, error) { return l.relay(ctx, address) }
	r.agent = l.agent
	if r.last, err = r.start(ctx, loopback); err != nil {
		return nil, err
	}
	r.first = r.last
	if hops > 1 {
		r.first, err = r.start(ctx, loopback)
	}
	return r, err
}

func (b *relayBed) newLockstepBed(ctx context.Context) (*lockstepBed, error) {
	server, err := natsd.Start(natsd.Options{})
	if err != nil {
		return nil, fmt.Errorf("start NATS: %w", err)
	}
	b.parts.onClose(func(context.Context) error { return server.Stop() })
	conn, err := b.parts.connect(server.ClientURL())
	if err != nil {
		return nil, err
	}
	l := &lockstepBed{
		relayBed: b, nats: server.ClientURL(), token: natsauth.NewToken(natsauth.TokenAgent), secret: filepath.Join(b.dir, "secret"), rules: filepath.Join(b.dir, "callers.yaml"),
	}
	if l.hash, err = natsauth.HashToken(natsauth.TokenAgent, l.token); err != nil {
		return nil, fmt.Errorf("make a token: %w", err)
	}
	if l.js, err = b.parts.streams(ctx, conn); err != nil {
		return nil, err
	}
	if err := l.enter(ctx, bedAgent, 1); err != nil {
		return nil, err
	}
	rules := fmt.Sprintf("callers: [{subject: %s, all_agents: true, targets: [kubernetes, %s, %s]}]\n", callerSubject, httpName, streamName)
	return l, errors.Join(l.configure(ctx), os.WriteFile(l.secret, []byte(relaySecret), 0o600), os.WriteFile(l.rules, []byte(rules), 0o600))
}

// enter puts agents into the directory.
func (l *lockstepBed) enter(ctx context.Context, first int64, n int) error {
	for i := range n {
		if err := enterAgent(ctx, l.js, events.DirectoryAgent{AgentID: int(first) + i, ProjectID: benchProject, TokenHash: hex.EncodeToString(l.hash[:])}); err != nil {
			return err
		}
	}
	return nil
}

// configure lets the agent lead to the target.
func (l *lockstepBed) configure(ctx context.Context) error {
	subject := "agent/" + strconv.FormatInt(bedAgent, 10)
	e, err := event.New(event.Attributes{
		Type: events.TypeAgentConfig, Source: event.ServiceSource(string(benchCell), "state"), Subject: subject, ID: subject + "/1", Time: time.Now(),
	}, events.AgentConfig{
		ConfigRevision: 1, FullResyncIntervalMs: int(time.Hour.Milliseconds()), UnschedulablePatienceMs: int(time.Minute.Milliseconds()),
		RelayTargets: []events.RelayTarget{{Name: httpName, Address: l.target.addrs[targetHTTP]}, {Name: streamName, Address: l.target.addrs[targetStream]}},
	})
	if err != nil {
		return fmt.Errorf("configure the agent: %w", err)
	}
	m, err := event.Encode(e, benchCell.ControlConfig(bedAgent))
	if err != nil {
		return fmt.Errorf("configure the agent: %w", err)
	}
	if _, err := l.js.PublishMsg(ctx, m); err != nil {
		return fmt.Errorf("configure the agent: %w", err)
	}
	return nil
}

// relay starts the service, which listens for agents at an address.
func (l *lockstepBed) relay(ctx context.Context, address string) (*child, error) {
	args := []string{
		"--cell-name=" + string(benchCell), "--nats-url=" + l.nats, "--agents-listen=" + address, "--external-listen=" + loopback, "--internal-listen=" + loopback, "--ops-listen=" + loopback,
		"--external-secret-file=" + l.secret, "--external-callers-file=" + l.rules, "--external-issuer=" + callerIssuer, "--external-audience=" + callerFor, "--internal-secret-file=" + l.secret,
	}
	if l.tls != nil {
		args = append(args, "--internal-ca-file="+l.CAFile)
		for _, listener := range []string{relayAgents, relayExternal, relayInternal} {
			args = append(args, "--"+listener+"-tls-cert-file="+l.CertFile, "--"+listener+"-tls-key-file="+l.KeyFile)
		}
	}
	return l.parts.start(ctx, l.dir, l.named(childRelay), args...)
}

const kubeconfigFormat = `{apiVersion: v1, kind: Config, current-context: c,
contexts: [{name: c, context: {cluster: c, user: u}}], users: [{name: u, user: {token: x}}],
clusters: [{name: c, cluster: {server: "https://%s", certificate-authority: %q}}]}
`

// agent starts the program that runs in clusters.
func (l *lockstepBed) agent(ctx context.Context, r *relays) error {
	curve, err := nkeys.CreateCurveKeys()
	if err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	seed, errSeed := curve.Seed()
	public, errPublic := curve.PublicKey()
	credentials := filepath.Join(l.dir, "credentials.json")
	if err := errors.Join(errSeed, errPublic, natsauth.WriteAgentCredentials(credentials, natsauth.AgentCredentials{
		ServerURLs: []string{l.nats}, Cell: benchCell, AgentID: bedAgent, Token: l.token, CurveSeed: string(seed), SealerKey: public,
	})); err != nil {
		return fmt.Errorf("write the credentials of the agent: %w", err)
	}
	args := []string{
		"--credentials-file=" + credentials, "--relay-urls=" + r.address(), "--targets-allowed-addresses=127.0.0.1:*", "--ops-listen=" + loopback,
	}
	if l.tls == nil {
		args = append(args, "--kubernetes-enabled=false")
	} else {
		kubeconfig := filepath.Join(l.dir, "kubeconfig")
		if err := os.WriteFile(kubeconfig, fmt.Appendf(nil, kubeconfigFormat, l.target.addrs[targetKube], l.CAFile), 0o600); err != nil {
			return fmt.Errorf("write the kubeconfig of the agent: %w", err)
		}
		args = append(args, "--relay-tls-ca-file="+l.CAFile, "--kubernetes-kubeconfig="+kubeconfig)
	}
	_, err = l.parts.start(ctx, l.dir, l.named(childAgent), args...)
	return err
}
