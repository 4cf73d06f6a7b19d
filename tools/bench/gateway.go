package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/gateway"
	"lockstep.internal/services/gateway/session"
	"lockstep.internal/services/relay/auth"
	"lockstep.internal/tools/stack"
)

// The workspace of the benchmark runs on this machine. The name of its Service is an address, such as 127.7.0.1: it
// consists of the name of the workspace, its namespace and the domain, so that the programs need no DNS. The port of
// its agent is fixed, so each run has another address. Linux only: others have no further loopback addresses.
const (
	gatewayWorkspace = "127"
	gatewayDomain    = "0.1"
	gatewayZone      = "ws.bench"
	gatewayProgram   = "gateway"
	// gatewayPerson owns the workspace.
	gatewayPerson      = 9
	gatewayWorkspaceID = "0199c0de-7a31-7c55-b1d4-3f2a9e10c6aa"
)

// gatewayFixture is a workspace and the two ways to it.
type gatewayFixture struct {
	*fixture

	js        jetstream.JetStream
	revision  int
	namespace string
	url       string // of NATS
	natsKeys  string
	keys      stack.GatewayKeys
	target    string // HTTP server in the workspace
	relay     string // for callers
	token     string // file with the token of the gateway for the relay
	cookie    string
	direct    *process
	tunnel    *process
}

// gatewayWays measures the ways of people into workspaces, beside nginx as a proxy and OpenSSH.
func gatewayWays(ctx context.Context, f *fixture, size Size, measured Measured) {
	g := newGatewayFixture(ctx, f)
	if size.wants("http_c32_rps.direct", "http_c32_rps.tunnel", "ws_c32_rps.direct", "ws_c32_rps.tunnel") {
		g.measureWeb(ctx, size, measured)
	}
	if size.wants("kb_per_idle_ws") {
		g.measureIdleWebSockets(ctx, size, measured)
	}
	g.measureSSH(ctx, size, measured)
}

func newGatewayFixture(ctx context.Context, f *fixture) *gatewayFixture {
	g := &gatewayFixture{fixture: f, namespace: strconv.Itoa(1 + rand.IntN(254))} //nolint:gosec,mnd // no secret; an octet
	g.js, g.url, g.natsKeys = f.accounts(ctx)
	var err error
	g.keys, _, err = stack.InitGateway(f.file("gateway"))
	check(err)
	g.target = g.startWorkspace(ctx)
	g.startRelay(ctx)
	g.publish(ctx, benchCell.Directory("user", strconv.Itoa(gatewayPerson)), events.DirectoryUser{
		UserID: gatewayPerson, State: events.UserStateActive,
	})
	g.publish(ctx, benchCell.AccessWorkspace(gatewayWorkspaceID), events.AccessWorkspace{
		WorkspaceID: gatewayWorkspaceID, Name: gatewayWorkspace, Namespace: g.namespace, ProjectID: benchProject,
		AgentID: int(benchAgent), UserID: gatewayPerson, ActualState: events.ActualStateRunning,
	})
	cookies := must(session.ParseKeys(string(must(os.ReadFile(g.keys.CookiesFile)))))
	g.cookie = must(cookies.Seal("session of "+g.host(), session.Session{
		ID: "bench", UserID: gatewayPerson, Login: "bench", ExpiresAt: time.Now().Add(time.Hour),
	}))
	g.direct, g.tunnel = g.start(ctx, gateway.ModeDirect), g.start(ctx, gateway.ModeTunnel)
	for _, way := range []*process{g.direct, g.tunnel} {
		g.awaitWorkspace(ctx, way)
	}
	return g
}

func (g *gatewayFixture) publish(ctx context.Context, subject string, data any) {
	g.revision++
	m := nats.NewMsg(subject)
	m.Data = must(json.Marshal(data))
	m.Header.Set(topology.RevisionHeader, strconv.Itoa(g.revision))
	must(g.js.PublishMsg(ctx, m))
}

// startRelay starts a relay and a relay agent.
func (g *gatewayFixture) startRelay(ctx context.Context) {
	const shared, subject = "a secret of the relays and the gateway", "gateway"
	token := natsauth.NewToken(natsauth.TokenAgent)
	hash := must(natsauth.HashToken(natsauth.TokenAgent, token))
	g.publish(ctx, benchCell.Directory("agent", strconv.FormatInt(benchAgent, 10)), events.DirectoryAgent{
		AgentID: int(benchAgent), ProjectID: benchProject, TokenHash: hex.EncodeToString(hash[:]),
	})
	secret, rules := g.file("secret"), g.file("callers.yaml")
	check(os.WriteFile(secret, []byte(shared), 0o600))
	check(os.WriteFile(rules, []byte("callers: [{subject: gateway, all_agents: true, workspaces: true}]"), 0o600))
	relay := g.fixture.start(ctx, stack.Relay, "--cell-name="+string(benchCell), "--nats-url="+g.url,
		"--nats-nkey-seed-file="+natsauth.SeedFile(g.natsKeys, natsauth.PrincipalRelay), "--ops-listen="+loopback,
		"--agents-listen="+loopback, "--external-listen="+loopback, "--internal-listen="+loopback,
		"--external-secret-file="+secret, "--external-callers-file="+rules, "--internal-secret-file="+secret)
	g.relay = "http://" + relay.addresses[stack.ListenerExternal]
	signer := must(auth.NewSigner(auth.Config{
		Issuer: "lockstep", Audience: "relay", Secrets: [][]byte{[]byte(shared)}, Lifetime: time.Hour,
	}))
	g.token = g.file("relay.token")
	check(os.WriteFile(g.token, []byte(must(signer.Sign(subject))), 0o600))
	g.fixture.start(ctx, stack.RelayAgent, "--credentials-file="+g.credentialsOf(token), "--ops-listen="+loopback,
		"--kubernetes-enabled=false", "--targets-workspace-domain="+gatewayDomain,
		"--relay-urls=ws://"+relay.addresses[stack.ListenerAgents])
}

// credentialsOf writes credentials of an agent whose workspaces are in namespaces that begin with its namespace.
func (g *gatewayFixture) credentialsOf(token string) string {
	file := g.credentials(benchAgent, token, g.url)
	credentials := must(natsauth.ReadAgentCredentials(file))
	credentials.NamespacePrefix = g.namespace
	check(os.Remove(file))
	check(natsauth.WriteAgentCredentials(file, credentials))
	return file
}

// start starts a gateway.
func (g *gatewayFixture) start(ctx context.Context, mode string) *process {
	cfg := gateway.DefaultConfig()
	cfg.Ops.Listen, cfg.Web.Listen, cfg.SSH.Listen = loopback, loopback, loopback
	cfg.Zone, cfg.Cell.Name = gatewayZone, string(benchCell)
	cfg.NATS.URL = config.URL(g.url)
	cfg.NATS.NKeySeedFile = config.SecretFile(natsauth.SeedFile(g.natsKeys, natsauth.PrincipalGateway))
	cfg.SSH.HostKeyFile = config.SecretFile(g.keys.HostFile)
	cfg.SignIn.KeysFile = config.SecretFile(g.keys.CookiesFile)
	cfg.SignIn.PersonKeyFile = config.SecretFile(g.keys.PersonFile)
	cfg.Workspaces.AuthorityKeyFile = config.SecretFile(g.keys.AuthorityFile)
	cfg.Workspaces.Mode, cfg.Workspaces.Domain = mode, gatewayDomain
	if mode == gateway.ModeTunnel {
		cfg.Relay.URL, cfg.Relay.TokenFile = g.relay, config.SecretFile(g.token)
	}
	return g.fixture.start(ctx, gatewayProgram, "--config", g.configuration(gatewayProgram, &cfg))
}

// host is the name of the workspace's HTTP server.
func (g *gatewayFixture) host() string {
	_, port, err := net.SplitHostPort(g.target)
	check(err)
	return port + "--" + gatewayWorkspace + "." + gatewayZone
}

// request returns a request of the signed-in person.
func (g *gatewayFixture) request(path, header string) []byte {
	return []byte("GET " + path + " HTTP/1.1\r\nHost: " + g.host() + "\r\nCookie: __Host-lockstep=" + g.cookie + "\r\n" +
		header + "\r\n")
}

// awaitWorkspace waits until a gateway reaches the workspace.
func (g *gatewayFixture) awaitWorkspace(ctx context.Context, way *process) {
	ctx, cancel := context.WithTimeoutCause(ctx, readyTimeout, fmt.Errorf("the workspace is not reached in time"))
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		address := way.addresses["web"]
		c := connectHTTP(ctx, "a gateway", address, http.StatusOK, func() []byte { return g.request("/", "") })
		err := c.call()
		_ = c.Close() // it was a try
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			check(way.withLog(fmt.Errorf("%w: %w", context.Cause(ctx), err)))
		case <-poll.C:
		}
	}
}

// measureWeb measures requests and messages of WebSockets in both modes, beside nginx as a proxy.
func (g *gatewayFixture) measureWeb(ctx context.Context, size Size, measured Measured) {
	nginx, found := g.startNginx(ctx, g.target)
	compare := func(name string, measure func(address string) float64) {
		direct, tunnel, baseline := []float64{}, []float64{}, []float64{}
		into := func(values *[]float64, address string) func(int) {
			return func(int) { *values = append(*values, measure(address)) }
		}
		takes := []func(int){into(&direct, g.direct.addresses["web"]), into(&tunnel, g.tunnel.addresses["web"])}
		if found {
			takes = append(takes, into(&baseline, nginx))
		}
		rotate(ctx, size.For, takes...)
		for mode, values := range map[string][]float64{".direct": direct, ".tunnel": tunnel} {
			figure := Figure{Value: median(values), Note: "there is no nginx in PATH"}
			if found {
				figure = beside(median(values), median(baseline))
			}
			measured[name+mode] = figure
		}
	}
	compare("http_c32_rps", func(address string) float64 {
		request := g.request("/x", "")
		return callRate(ctx, address, 32, turnOf(size), func(int) caller {
			return connectHTTP(ctx, address, address, http.StatusOK, func() []byte { return request })
		})
	})
	compare("ws_c32_rps", func(address string) float64 {
		return callRate(ctx, address, 32, turnOf(size), func(int) caller { return g.webSocket(ctx, address) })
	})
}

// The memory of a connection is measured with as many of them. The agent of a workspace accepts 100 of SSH.
const (
	idleWebSockets = 300
	idleSessions   = 80
)

// memory returns the bytes of its heap and its stacks.
func memory(ctx context.Context, p *process) float64 {
	return p.heap(ctx) + p.metrics(ctx)["go_memstats_stack_inuse_bytes"]
}

// measureIdle measures the memory of the gateway for each connection that open opens.
func (g *gatewayFixture) measureIdle(ctx context.Context, n int, open func() func()) Figure {
	closeFirst := open() // what the first one creates, such as pools, is not of each
	before := memory(ctx, g.direct)
	for range n {
		defer open()()
	}
	after := memory(ctx, g.direct)
	closeFirst()
	return Figure{
		Value: max(after-before, 0) / float64(n) / 1024,
		Note:  fmt.Sprintf("heap and stacks with %d connections, mode direct", n),
	}
}

func (g *gatewayFixture) measureIdleWebSockets(ctx context.Context, size Size, measured Measured) {
	measured["kb_per_idle_ws"] = g.measureIdle(ctx, size.of(idleWebSockets), func() func() {
		c := g.webSocket(ctx, g.direct.addresses["web"])
		check(c.call())
		return func() { _ = c.Close() }
	})
}
