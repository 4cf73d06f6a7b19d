package main

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"time"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/relay/auth"
	"lockstep.internal/tools/stack"
)

// relayFixture is a target with the routes to it: through Lockstep's relay, direct, through remotedialer, and through
// processes that copy. All of it uses TLS, or nothing does, except behind an agent, as in a cluster.
type relayFixture struct {
	*fixture
	certified

	tls    *tls.Config
	target map[string]string // addresses
	relay  []string          // arguments of Lockstep's relays
	token  string            // of callers
	routes []route
}

func newRelayFixture(ctx context.Context, f *fixture, pods int, isSecure bool) *relayFixture {
	keys, _, err := stack.InitRelay(f.file("keys"))
	check(err)
	r := &relayFixture{fixture: f}
	files := certified{CertFile: keys.CertFile, KeyFile: keys.KeyFile, CAFile: keys.CertFile}
	if isSecure {
		r.certified, r.tls = files, must(files.client())
	}
	r.target = f.startStandIn(ctx, standInTarget, targetConfig{files, pods}).addresses
	r.routes = []route{r.lockstep(ctx), r.direct(r.target, "the direct connection"), r.remotedialer(ctx), r.copies(ctx)}
	for _, to := range r.routes {
		to.awaitTarget(ctx)
	}
	return r
}

// direct returns a route without a relay to addresses like those of the target.
func (r *relayFixture) direct(addresses map[string]string, name string) route {
	if r.tls == nil {
		return route{name: name, http: addresses[targetHTTP], stream: addresses[targetStream]}
	}
	return route{
		name: name, http: addresses[targetHTTPS], stream: addresses[targetStreamTLS], kube: addresses[targetKube],
		caFile: r.CAFile, tls: r.tls,
	}
}

// throughRelay returns the route of callers of a relay.
func (r *relayFixture) throughRelay(name, external, token string) route {
	path := "/agents/" + strconv.FormatInt(benchAgent, 10)
	to := route{name: name, http: external, stream: external, path: path, token: token, tls: r.tls, caFile: r.CAFile}
	if r.tls != nil {
		to.kube = external + path + "/kubernetes"
	}
	return to
}

// throughSecondRelay returns the route through a relay that does not have the agent.
func (r *relayFixture) throughSecondRelay(ctx context.Context) route {
	second := r.start(ctx, stack.Relay, r.relay...).addresses
	to := r.throughRelay("two relays", second[stack.ListenerExternal], r.token)
	to.awaitTarget(ctx)
	return to
}

// lockstep starts a relay with an agent and returns the route through them.
func (r *relayFixture) lockstep(ctx context.Context) route {
	js, url, keys := r.accounts(ctx)
	token := natsauth.NewToken(natsauth.TokenAgent)
	hash := must(natsauth.HashToken(natsauth.TokenAgent, token))
	publishAgent(ctx, js, events.DirectoryAgent{
		AgentID: int(benchAgent), ProjectID: benchProject, TokenHash: hex.EncodeToString(hash[:]),
	})
	publishEvent(ctx, js, benchCell.ControlConfig(benchAgent), events.TypeAgentConfig, "agent/config", events.AgentConfig{
		ConfigRevision: 1, FullResyncIntervalMs: int(time.Hour.Milliseconds()),
		UnschedulablePatienceMs: int(time.Minute.Milliseconds()),
		RelayTargets: []events.RelayTarget{
			{Name: targetHTTP, Address: r.target[targetHTTP]}, {Name: targetStream, Address: r.target[targetStream]},
		},
	})
	const shared, issuer, audience, subject = "a secret of the relays and their caller", "lockstep", "relay", "bench"
	secret, rules := r.file("secret"), r.file("callers.yaml")
	check(os.WriteFile(secret, []byte(shared), 0o600))
	const callers = "callers: [{subject: %s, all_agents: true, targets: [kubernetes, %s, %s]}]\n"
	check(os.WriteFile(rules, fmt.Appendf(nil, callers, subject, targetHTTP, targetStream), 0o600))
	signer := must(auth.NewSigner(auth.Config{
		Issuer: issuer, Audience: audience, Secrets: [][]byte{[]byte(shared)}, Lifetime: 24 * time.Hour,
	}))
	r.token = must(signer.Sign(subject))
	r.relay = []string{
		"--cell-name=" + string(benchCell), "--nats-url=" + url, "--ops-listen=" + loopback,
		"--nats-nkey-seed-file=" + natsauth.SeedFile(keys, natsauth.PrincipalRelay),
		"--agents-listen=" + loopback, "--external-listen=" + loopback, "--internal-listen=" + loopback,
		"--external-secret-file=" + secret, "--external-callers-file=" + rules, "--external-issuer=" + issuer,
		"--external-audience=" + audience, "--internal-secret-file=" + secret,
	}
	agent := []string{
		"--targets-allowed-addresses=127.0.0.1:*", "--ops-listen=" + loopback,
		"--credentials-file=" + r.credentials(benchAgent, token, url),
	}
	scheme := "ws://"
	if r.tls == nil {
		agent = append(agent, "--kubernetes-enabled=false")
	} else {
		r.relay = append(r.relay, "--internal-ca-file="+r.CAFile)
		for _, listener := range []string{stack.ListenerAgents, stack.ListenerExternal, stack.ListenerInternal} {
			r.relay = append(r.relay, "--"+listener+"-tls-cert-file="+r.CertFile, "--"+listener+"-tls-key-file="+r.KeyFile)
		}
		scheme = "wss://"
		agent = append(agent, "--relay-tls-ca-file="+r.CAFile, "--kubernetes-kubeconfig="+r.kubeconfig())
	}
	relay := r.start(ctx, stack.Relay, r.relay...).addresses
	r.start(ctx, stack.RelayAgent, append(agent, "--relay-urls="+scheme+relay[stack.ListenerAgents])...)
	return r.throughRelay("Lockstep", relay[stack.ListenerExternal], r.token)
}

// kubeconfig writes a kubeconfig for the API server of the target and returns the file.
func (r *relayFixture) kubeconfig() string {
	const format = `{apiVersion: v1, kind: Config, current-context: c,
contexts: [{name: c, context: {cluster: c, user: u}}], users: [{name: u, user: {token: x}}],
clusters: [{name: c, cluster: {server: "https://%s", certificate-authority: %q}}]}
`
	file := r.file("kubeconfig")
	check(os.WriteFile(file, fmt.Appendf(nil, format, r.target[targetKube], r.CAFile), 0o600))
	return file
}
