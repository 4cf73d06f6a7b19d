package natsauth_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsauth/natsadmin"
	"lockstep.internal/libs/topology"
)

const (
	cellName = topology.Cell("local")
	timeout  = 2 * time.Minute
	agentOne = int64(17)
	agentTwo = int64(18)
	// maxComplaints that a client keeps.
	maxComplaints = 10_000
)

// directory is an authenticator over a map of tokens.
type directory struct {
	mu     sync.Mutex
	tokens map[int64]string
	// readers are the filters of subscribers by name.
	readers map[string]string
	broken  error
	asked   int
}

func newDirectory() *directory {
	return &directory{
		tokens: map[int64]string{agentOne: "token-one", agentTwo: "token-two"},
		readers: map[string]string{
			"reader": "lockstep.local.deploy.>", "shop": "lockstep.local.deploy.*.shop.>", "jobs": "lockstep.local.job.17.>",
			"admissions": "lockstep.local.admission.17.>",
		},
	}
}

func (d *directory) Authenticate(_ context.Context, c natsauth.Credentials) (natsauth.Principal, error) {
	d.mu.Lock()
	defer d.mu.Unlock()

	d.asked++

	if d.broken != nil {
		return natsauth.Principal{}, d.broken
	}

	name, listens := natsauth.ParseSubscriberUser(c.User)
	if filter, known := d.readers[name]; known && c.Password == name+"-token" {
		if listens {
			return natsauth.Principal{Kind: natsauth.KindListener, Name: name, Filter: filter}, nil
		}

		return natsauth.Principal{Kind: natsauth.KindSubscriber, Name: name, Filter: filter}, nil
	}

	id, err := strconv.ParseInt(c.User, 10, 64)
	if token, known := d.tokens[id]; err != nil || !known || c.Password != token {
		return natsauth.Principal{}, fmt.Errorf("%w: wrong token", natsauth.ErrRefused)
	}

	return natsauth.Principal{Kind: natsauth.KindAgent, AgentID: id}, nil
}

func (d *directory) fail(with error) {
	d.mu.Lock()
	defer d.mu.Unlock()

	d.broken = with
}

func (d *directory) timesAsked() int {
	d.mu.Lock()
	defer d.mu.Unlock()

	return d.asked
}

func (d *directory) admit(id int64, token string) {
	d.mu.Lock()
	defer d.mu.Unlock()

	d.tokens[id] = token
}

func (d *directory) revokeReader(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()

	delete(d.readers, name)
}

func (d *directory) revoke(id int64) {
	d.mu.Lock()
	defer d.mu.Unlock()

	delete(d.tokens, id)
}

// cell is a real server started from a rendered configuration, with streams and consumers as the
// state service makes them, and a responder.
type cell struct {
	dir       string
	server    *server.Server
	directory *directory
	state     *nats.Conn
	js        jetstream.JetStream
}

func startServer(t *testing.T, dir string) *server.Server {
	t.Helper()

	s := launchServer(t, dir, func(*server.Options) {})
	require.True(t, s.ReadyForConnections(timeout))

	return s
}

// launchServer does not wait: a server of a cluster is ready only when others are.
func launchServer(t *testing.T, dir string, adjust func(*server.Options)) *server.Server {
	t.Helper()

	options, err := server.ProcessConfigFile(natsauth.ConfigFile(dir))
	require.NoError(t, err)

	options.NoSigs = true
	options.NoLog = true
	// A client takes a ping for a failure while it waits for the responder.
	options.DisableShortFirstPing = true
	adjust(options)

	s, err := server.NewServer(options)
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})

	return s
}

func initDir(t *testing.T, options natsauth.Options) string {
	t.Helper()

	dir := t.TempDir()
	options.Cell = cellName
	options.MapCells = []topology.Cell{"two"}
	options.Principals = []natsauth.StaticPrincipal{natsadmin.Principal()}
	options.ListenPort = -1
	options.StoreDir = t.TempDir()
	_, err := natsauth.Init(dir, options)
	require.NoError(t, err)

	return dir
}

func startCell(t *testing.T, options ...func(*natsauth.Responder)) *cell {
	t.Helper()

	c := &cell{dir: initDir(t, natsauth.Options{}), directory: newDirectory()}
	c.server = startServer(t, c.dir)
	c.startResponder(t, options...)
	c.state = c.static(t, natsauth.PrincipalState)

	var err error
	c.js, err = jetstream.New(c.state)
	require.NoError(t, err)
	createStreams(t, c.js)

	return c
}

func createStreams(t *testing.T, js jetstream.JetStream) {
	t.Helper()

	require.NoError(t, topology.Ensure(testContext(t), js, cellName, topology.Options{StorageBytes: 100 << 20}))

	for _, id := range []int64{agentOne, agentTwo} {
		require.NoError(t, topology.EnsureAgent(testContext(t), js, cellName, id))
	}

	for name, filter := range newDirectory().readers {
		require.NoError(t, topology.EnsureSubscriber(testContext(t), js, topology.Subscriber{Name: name, Filter: filter}))
	}
}

// startResponder returns a function that stops it.
func (c *cell) startResponder(t *testing.T, options ...func(*natsauth.Responder)) func() {
	t.Helper()

	return c.startResponderWith(t, nil, options...)
}

func (c *cell) startResponderWith(t *testing.T, connect []nats.Option, options ...func(*natsauth.Responder)) func() {
	t.Helper()

	keys, err := natsauth.LoadCalloutKeys(c.dir)
	require.NoError(t, err)

	r := &natsauth.Responder{
		Conn: c.static(t, natsauth.PrincipalCallout, connect...), Keys: keys, Cell: cellName, Authenticator: c.directory,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	for _, f := range options {
		f(r)
	}

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)

	go func() { ended <- r.Run(ctx) }()

	var once sync.Once

	stop := func() {
		once.Do(func() {
			cancel()
			require.NoError(t, receive(t, ended))
		})
	}

	t.Cleanup(stop)

	select {
	case <-r.Started():
	case err := <-ended:
		require.NoError(t, err)
		require.Fail(t, "responder ended at once")
	case <-time.After(timeout):
		require.Fail(t, "responder did not start")
	}

	return stop
}

// static connects as a control-plane principal.
func (c *cell) static(t *testing.T, name string, options ...nats.Option) *nats.Conn {
	t.Helper()

	return dialStatic(t, c.dir, c.server.ClientURL(), name, options...)
}

func dialStatic(t *testing.T, dir, url, name string, options ...nats.Option) *nats.Conn {
	t.Helper()

	seed, err := nats.NkeyOptionFromSeed(natsauth.SeedFile(dir, name))
	require.NoError(t, err)

	return dial(t, url, append([]nats.Option{
		seed, nats.CustomInboxPrefix(natsauth.InboxPrefix(name)), nats.Name(name),
		nats.ReconnectWait(20 * time.Millisecond), nats.MaxReconnects(-1),
	}, options...)...)
}

// dial returns when it is connected. It retries: a server refuses a client when a responder does not answer in time.
func dial(t *testing.T, url string, options ...nats.Option) *nats.Conn {
	t.Helper()

	connected := make(chan struct{}, 1)
	conn, err := nats.Connect(
		url,
		append(
			options, nats.Timeout(timeout), nats.RetryOnFailedConnect(true),
			nats.ConnectHandler(func(*nats.Conn) { connected <- struct{}{} }),
		)...)
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	receive(t, connected)

	return conn
}

// agent connects as an agent and collects what the server complains about.
func (c *cell) agent(t *testing.T, id int64, options ...nats.Option) *client {
	t.Helper()

	return dialAgent(t, c.server.ClientURL(), id, options...)
}

type client struct {
	*nats.Conn

	complaints chan error
	ignored    chan *nats.Msg // see trySubscribe
}

func newClient() *client {
	return &client{complaints: make(chan error, maxComplaints), ignored: make(chan *nats.Msg)}
}

func dialAgent(t *testing.T, url string, id int64, options ...nats.Option) *client {
	t.Helper()

	a := newClient()
	user := strconv.FormatInt(id, 10)

	a.Conn = dial(t, url, append([]nats.Option{
		nats.UserInfo(user, map[int64]string{agentOne: "token-one", agentTwo: "token-two"}[id]),
		nats.CustomInboxPrefix(natsauth.InboxPrefix(user)),
		nats.ReconnectWait(20 * time.Millisecond), nats.ReconnectJitter(0, 0), nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { a.recordError(err) }),
	}, options...)...)
	drain(a.complaints) // of failed attempts

	return a
}

func (a *client) recordError(err error) {
	select {
	case a.complaints <- err:
	default:
	}
}

func (a *client) jetStream(t *testing.T) jetstream.JetStream {
	t.Helper()

	js, err := jetstream.New(a.Conn)
	require.NoError(t, err)

	return js
}

func testContext(t *testing.T) context.Context {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	t.Cleanup(cancel)

	return ctx
}

func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()

	select {
	case value := <-from:
		return value
	case <-time.After(timeout):
		require.Fail(t, "timed out waiting for a value", "within %s", timeout)
		panic("unreachable")
	}
}

var errBroken = errors.New("database is unavailable")
