package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"time"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/relay/auth"
)

const (
	// relaySecret is shared by the relays and the service that calls them.
	relaySecret    = "a secret of the relays and their caller"
	callerSubject  = "bench"
	callerIssuer   = "lockstep"
	callerAudience = "relay"
	// callerLifetime is longer than any run.
	callerLifetime = 24 * time.Hour
)

// Names of a relay's addresses.
const (
	relayAgents   = "agents"
	relayExternal = "external"
	relayInternal = "internal"
)

// lockstepRelays are Lockstep's relays with one agent, which is connected to the first.
type lockstepRelays struct {
	*relayFixture

	first *child
	args  []string
	token string // of callers
}

func (r *relayFixture) newLockstepRelays(ctx context.Context) *lockstepRelays {
	_, js, url := r.jetStream(ctx)
	token := natsauth.NewToken(natsauth.TokenAgent)
	hash := must(natsauth.HashToken(natsauth.TokenAgent, token))
	publishAgent(ctx, js, events.DirectoryAgent{
		AgentID: int(benchAgent), ProjectID: benchProject, TokenHash: hex.EncodeToString(hash[:]),
	})
	publishEvent(ctx, js, benchCell.ControlConfig(benchAgent), events.TypeAgentConfig, "agent/config", events.AgentConfig{
		ConfigRevision: 1, FullResyncIntervalMs: int(time.Hour.Milliseconds()),
		UnschedulablePatienceMs: int(time.Minute.Milliseconds()),
		RelayTargets: []events.RelayTarget{
			{Name: targetNameHTTP, Address: r.target.addresses[targetHTTP]},
			{Name: targetNameStream, Address: r.target.addresses[targetStream]},
		},
	})
	signer := must(auth.NewSigner(auth.Config{
		Issuer: callerIssuer, Audience: callerAudience, Secrets: [][]byte{[]byte(relaySecret)}, Lifetime: callerLifetime,
	}))
	secret, rules := r.file("secret"), r.file("callers.yaml")
	check(os.WriteFile(secret, []byte(relaySecret), 0o600))
	const callers = "callers: [{subject: %s, all_agents: true, targets: [kubernetes, %s, %s]}]\n"
	check(os.WriteFile(rules, fmt.Appendf(nil, callers, callerSubject, targetNameHTTP, targetNameStream), 0o600))
	l := &lockstepRelays{relayFixture: r, token: must(signer.Sign(callerSubject)), args: []string{
		"--cell-name=" + string(benchCell), "--nats-url=" + url, "--ops-listen=" + loopback,
		"--agents-listen=" + loopback, "--external-listen=" + loopback, "--internal-listen=" + loopback,
		"--external-secret-file=" + secret, "--external-callers-file=" + rules, "--external-issuer=" + callerIssuer,
		"--external-audience=" + callerAudience, "--internal-secret-file=" + secret,
	}}
	agent := []string{"--targets-allowed-addresses=127.0.0.1:*", "--ops-listen=" + loopback}
	scheme := "ws://"
	if r.tls == nil {
		agent = append(agent, "--kubernetes-enabled=false")
	} else {
		l.args = append(l.args, "--internal-ca-file="+r.CAFile)
		for _, listener := range []string{relayAgents, relayExternal, relayInternal} {
			l.args = append(l.args, "--"+listener+"-tls-cert-file="+r.CertFile, "--"+listener+"-tls-key-file="+r.KeyFile)
		}
		scheme = "wss://"
		agent = append(agent, "--relay-tls-ca-file="+r.CAFile, "--kubernetes-kubeconfig="+r.kubeconfig())
	}
	l.first = l.start(ctx)
	r.start(ctx, childAgent, append(agent, "--credentials-file="+r.credentials(benchAgent, token, url),
		"--relay-urls="+scheme+l.first.addresses[relayAgents])...)
	return l
}

// start starts a relay.
func (l *lockstepRelays) start(ctx context.Context) *child {
	return l.fixture.start(ctx, childRelay, l.args...)
}

// route returns the route of callers of a relay.
func (l *lockstepRelays) route(first *child) route {
	external := first.addresses[relayExternal]
	path := "/agents/" + strconv.FormatInt(benchAgent, 10)
	to := route{
		name: "Lockstep", http: external, stream: external, path: path, token: l.token, tls: l.tls, caFile: l.CAFile,
	}
	if l.tls != nil {
		to.kube = external + path + "/kubernetes"
	}
	return to
}

// kubeconfig writes a kubeconfig for the API server of the target and returns the file.
func (r *relayFixture) kubeconfig() string {
	const format = `{apiVersion: v1, kind: Config, current-context: c,
contexts: [{name: c, context: {cluster: c, user: u}}], users: [{name: u, user: {token: x}}],
clusters: [{name: c, cluster: {server: "https://%s", certificate-authority: %q}}]}
`
	file := r.file("kubeconfig")
	check(os.WriteFile(file, fmt.Appendf(nil, format, r.target.addresses[targetKube], r.CAFile), 0o600))
	return file
}
