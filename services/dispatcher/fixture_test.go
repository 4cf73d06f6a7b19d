package dispatcher_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/leader"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/seal"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/dispatcher"
	"lockstep.internal/services/dispatcher/desired"
	"lockstep.internal/tools/testkit/labtest"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
)

const (
	cell    = topology.Cell("local")
	timeout = 2 * time.Minute
	tick    = 20 * time.Millisecond
)

// agents counts the agents of the tests: each test has its own in the shared cluster.
var agents atomic.Int64

func TestMain(m *testing.M) {
	labtest.Parallel(12)
	labtest.Main(m)
}

// admin returns the configuration of an administrator of the shared cluster.
func admin(t *testing.T) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", labtest.Kubeconfig(t))
	require.NoError(t, err)
	config.QPS = -1
	return config
}

// fixture is NATS with its accounts and a fake state service, for one agent.
type fixture struct {
	t       *testing.T
	agent   int64
	server  *natsd.Server
	state   *nats.Conn
	js      jetstream.JetStream
	sealer  seal.Key
	file    string // agent credentials
	caFile  string // of the server's certificate; empty without TLS
	kube    *kubernetes.Clientset
	applied chan event.Event

	mu     sync.Mutex
	values map[string]string // of secrets by digest
	asked  int
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return newFixtureWith(t, natsauth.Options{})
}

func newFixtureWith(t *testing.T, options natsauth.Options) *fixture {
	t.Helper()
	p := &fixture{t: t, agent: 2000 + agents.Add(1), values: map[string]string{}, applied: make(chan event.Event, 10_000)}
	dir := t.TempDir()
	options.Cell, options.ListenPort, options.StoreDir = cell, -1, t.TempDir()
	_, err := natsauth.Init(dir, options)
	require.NoError(t, err)
	if options.TLS != nil {
		p.caFile = options.TLS.CertFile
	}
	_, err = server.ProcessConfigFile(natsauth.ConfigFile(dir))
	require.NoError(t, err)
	p.server, err = natsd.Start(natsd.Options{ConfigFile: natsauth.ConfigFile(dir)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.server.Stop()) })

	token := natsauth.NewToken(natsauth.TokenAgent)
	p.respond(dir, token)
	p.state = p.static(dir, natsauth.PrincipalState)
	p.js = natstest.Open(t, p.state)
	require.NoError(t, topology.Ensure(p.context(), p.js, cell, topology.Options{StorageBytes: 200 << 20}))
	require.NoError(t, topology.EnsureAgent(p.context(), p.js, cell, p.agent))
	p.kube, err = kubernetes.NewForConfig(admin(t))
	require.NoError(t, err)
	p.credentials(token)
	p.answerSecrets()
	p.collectResults()
	return p
}

func (p *fixture) context() context.Context {
	ctx, cancel := context.WithTimeout(p.t.Context(), timeout)
	p.t.Cleanup(cancel)
	return ctx
}

// authenticator accepts the agent's token.
type authenticator struct {
	agent int64
	token string
}

func (a authenticator) Authenticate(_ context.Context, c natsauth.Credentials) (natsauth.Principal, error) {
	if c.User != strconv.FormatInt(a.agent, 10) || c.Password != a.token {
		return natsauth.Principal{}, natsauth.ErrRefused
	}
	return natsauth.Principal{Kind: natsauth.KindAgent, AgentID: a.agent}, nil
}

func (p *fixture) respond(dir, token string) {
	keys, err := natsauth.LoadCalloutKeys(dir)
	require.NoError(p.t, err)
	responder := &natsauth.Responder{
		Conn: p.static(dir, natsauth.PrincipalCallout), Keys: keys, Cell: cell, Authenticator: authenticator{p.agent, token},
		Logger: slog.New(slog.DiscardHandler),
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- responder.Run(ctx) }()
	p.t.Cleanup(func() {
		cancel()
		require.NoError(p.t, <-ended)
	})
	<-responder.Started()
}

func (p *fixture) static(dir, name string) *nats.Conn {
	seed, err := nats.NkeyOptionFromSeed(natsauth.SeedFile(dir, name))
	require.NoError(p.t, err)
	options := []nats.Option{seed, nats.CustomInboxPrefix(natsauth.InboxPrefix(name))}
	if p.caFile != "" {
		options = append(options, nats.RootCAs(p.caFile))
	}
	return natstest.Connect(p.t, p.server, options...)
}

func (p *fixture) credentials(token string) {
	var err error
	p.sealer, err = seal.GenerateKey()
	require.NoError(p.t, err)
	own, err := seal.GenerateKey()
	require.NoError(p.t, err)
	seed, err := own.Seed()
	require.NoError(p.t, err)
	p.file = filepath.Join(p.t.TempDir(), "agent.json")
	require.NoError(p.t, natsauth.WriteAgentCredentials(p.file, natsauth.AgentCredentials{
		ServerURLs: []string{p.server.ClientURL()}, Cell: cell, AgentID: p.agent, Token: token,
		CurveSeed: seed.Reveal(), SealerKey: p.sealer.Public(),
	}))
}

func (p *fixture) answerSecrets() {
	credentials, err := natsauth.ReadAgentCredentials(p.file)
	require.NoError(p.t, err)
	agent, err := seal.ParseKey(credentials.CurveSeed)
	require.NoError(p.t, err)
	_, err = p.state.Subscribe(cell.Prefix(topology.FamilySecret)+".*.*", func(m *nats.Msg) {
		var request seal.Request
		if err := json.Unmarshal(m.Data, &request); err != nil {
			p.t.Error(err)
		}
		p.mu.Lock()
		value, known := p.values[request.Digest]
		p.asked++
		p.mu.Unlock()
		reply := seal.Reply{Error: &seal.ReplyError{Code: errcode.NotFound, Message: "there is no such secret"}}
		if known {
			workspace := m.Subject[strings.LastIndex(m.Subject, ".")+1:]
			box, err := seal.Values{"TOKEN": seal.NewValue(value)}.Seal(request.Label(workspace), agent.Public(), p.sealer)
			if err != nil {
				p.t.Error(err)
			}
			reply = seal.Reply{Box: box}
		}
		data, err := json.Marshal(reply)
		if err != nil {
			p.t.Error(err)
		}
		if err := m.Respond(data); err != nil {
			p.t.Error(err)
		}
	})
	require.NoError(p.t, err)
}

func (p *fixture) secret(digest, value string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.values[digest] = value
}

// collectResults sends the agent's results to the channel.
func (p *fixture) collectResults() {
	consumer, err := p.js.OrderedConsumer(
		p.context(), topology.StreamApplied,
		jetstream.OrderedConsumerConfig{FilterSubjects: []string{cell.AppliedAgent(p.agent)}},
	)
	require.NoError(p.t, err)
	consuming, err := consumer.Consume(func(m jetstream.Msg) {
		e, err := event.Decode(m.Headers(), m.Data())
		if err != nil {
			p.t.Error(err)
			return
		}
		if m.Subject() != cell.Applied(p.agent, e.Subject()) ||
			e.Source() != event.AgentSource("local", p.agent, "dispatcher") ||
			m.Headers().Get("Nats-Msg-Id") != "" {
			p.t.Errorf("%s on %s from %s", e.ID(), m.Subject(), e.Source())
		}
		p.applied <- e
	})
	require.NoError(p.t, err)
	p.t.Cleanup(func() {
		consuming.Stop()
		<-consuming.Closed()
	})
}

// next returns the next result, which must be of this kind.
func next[T any](p *fixture, kind string) T {
	p.t.Helper()
	var data T
	select {
	case e := <-p.applied:
		p.t.Logf("%s %s", e.ID(), e.Data())
		require.Equal(p.t, "dev.lockstep.applied."+kind+".v1", e.Type(), "%s", e.Data())
		require.NoError(p.t, json.Unmarshal(e.Data(), &data))
	case <-time.After(timeout):
		require.Fail(p.t, "no result", "waited for %s", kind)
	}
	return data
}

// until returns the next result of this kind. It skips others.
func until[T any](p *fixture, kind string) T {
	p.t.Helper()
	for {
		select {
		case e := <-p.applied:
			p.t.Logf("%s %s", e.ID(), e.Data())
			if e.Type() == "dev.lockstep.applied."+kind+".v1" {
				var data T
				require.NoError(p.t, json.Unmarshal(e.Data(), &data))
				return data
			}
		case <-time.After(timeout):
			require.Fail(p.t, "no result", "waited for %s", kind)
		}
	}
}

// workspace returns a desired workspace as the state service publishes it.
func (p *fixture) workspace() events.DesiredWorkspace {
	id := uuid.NewString()
	return events.DesiredWorkspace{
		WorkspaceID:     id,
		Name:            "w",
		Namespace:       "ws-" + strconv.FormatInt(p.agent, 10) + "-" + id[:8],
		DesiredRevision: 1,
		Target:          events.DesiredTargetRunning,
	}
}

func (p *fixture) configMap(w events.DesiredWorkspace, name, value string) map[string]any {
	labels := map[string]any{}
	for key, value := range (desired.Owner{Agent: p.agent, Workspace: w.WorkspaceID}).Labels() {
		labels[key] = value
	}
	return map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "data": map[string]any{"key": value},
		"metadata": map[string]any{"name": name, "namespace": w.Namespace, "labels": labels},
	}
}

// deployment returns a Deployment with zero replicas.
func (p *fixture) deployment(w events.DesiredWorkspace) map[string]any {
	match := map[string]any{"app": "w"}
	manifest := p.configMap(w, "w", "")
	delete(manifest, "data")
	manifest["apiVersion"], manifest["kind"] = "apps/v1", "Deployment"
	manifest["spec"] = map[string]any{
		"replicas": 0, "selector": map[string]any{"matchLabels": match},
		"template": map[string]any{
			"metadata": map[string]any{"labels": match},
			"spec":     map[string]any{"containers": []any{map[string]any{"name": "main", "image": "registry.example/ide:1"}}},
		},
	}
	return manifest
}

// control publishes a control event.
func (p *fixture) control(subject, kind string, data any) {
	p.t.Helper()
	e, err := event.New(event.Attributes{
		Type: kind, Source: event.ServiceSource("local", "state"), Subject: "agent", ID: uuid.NewString(),
		Time: time.Now(),
	}, data)
	require.NoError(p.t, err)
	message, err := event.Encode(e, subject)
	require.NoError(p.t, err)
	_, err = p.js.PublishMsg(p.context(), message)
	require.NoError(p.t, err)
}

// desire publishes the desired state.
func (p *fixture) desire(w events.DesiredWorkspace, extensions ...string) {
	p.t.Helper()
	e, err := event.New(event.Attributes{
		Type: events.TypeDesiredWorkspace, Source: event.ServiceSource("local", "state"), Subject: w.WorkspaceID,
		ID: w.WorkspaceID + "/" + strconv.Itoa(w.DesiredRevision), Time: time.Now(),
	}, w)
	require.NoError(p.t, err)
	if len(extensions) == 2 {
		e.SetExtension(extensions[0], extensions[1])
	}
	message, err := event.Encode(e, cell.Desired(p.agent, w.WorkspaceID))
	require.NoError(p.t, err)
	_, err = p.js.PublishMsg(p.context(), message)
	require.NoError(p.t, err)
}

// config retries fast. Its lease and its timeouts are long, so that a slow machine exceeds none.
func (p *fixture) config() dispatcher.Config {
	cfg := dispatcher.DefaultConfig()
	cfg.Ops.Listen = "127.0.0.1:0"
	cfg.CredentialsFile, cfg.Kubeconfig = p.file, labtest.Kubeconfig(p.t)
	cfg.PublishTimeout = timeout
	cfg.RetryMin, cfg.RetryMax = 10*time.Millisecond, 200*time.Millisecond
	cfg.Lease = leader.Config{
		Duration: 30 * time.Second, RenewDeadline: 20 * time.Second, RetryPeriod: 100 * time.Millisecond,
	}
	cfg.Telemetry.LogLevel = "error"
	return cfg
}

// start starts a dispatcher. It returns the addresses on which it listens, and the function that stops it.
func (p *fixture) start(cfg dispatcher.Config) (map[string]string, func()) {
	p.t.Helper()
	ready := make(chan map[string]string, 1)
	cfg.OnReady = func(addrs map[string]string) { ready <- addrs }
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- dispatcher.Main(ctx, cfg) }()
	var once sync.Once
	stop := func() {
		once.Do(func() {
			cancel()
			require.NoError(p.t, <-ended)
		})
	}
	p.t.Cleanup(stop)
	var addrs map[string]string
	select {
	case addrs = <-ready:
	case err := <-ended:
		ended <- err
		require.NoError(p.t, err, "the dispatcher ended at once")
	case <-time.After(timeout):
		require.Fail(p.t, "the dispatcher is not ready")
	}
	return addrs, stop
}

// value returns the value of the ConfigMap "files".
func (p *fixture) value(w events.DesiredWorkspace) string {
	object, err := p.kube.CoreV1().ConfigMaps(w.Namespace).Get(p.context(), "files", metav1.GetOptions{})
	require.NoError(p.t, err)
	return object.Data["key"]
}
