package webfront

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"lockstep.internal/services/gateway/access"
	"lockstep.internal/services/gateway/activity"
	"lockstep.internal/services/gateway/address"
	"lockstep.internal/services/gateway/agent/sshserver"
	"lockstep.internal/services/gateway/authority"
	"lockstep.internal/services/gateway/session"
	"lockstep.internal/services/gateway/signin"
	"lockstep.internal/services/gateway/signin/signintest"
	"lockstep.internal/services/gateway/sshfront"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const (
	zone  = address.Zone("ws.test")
	hello = "https://3000--hello.ws.test"
	owner = 7
)

// fixture is a front with a real provider, and the workspace hello, whose port 3000 is a server of the test.
type fixture struct {
	*testing.T
	*access.Table
	*session.Revocations

	front     *httptest.Server
	issuer    string
	workspace *httptest.Server

	activity  *activity.Table
	clock     *clock
	authority *authority.Authority
	agent     string

	mu       sync.Mutex
	received []*http.Request
	started  []string
}

func newFixture(t *testing.T, change func(*Options)) *fixture {
	f := &fixture{
		T: t, Table: access.New(), Revocations: session.NewRevocations(time.Now), clock: &clock{now: time.Now()},
	}
	f.Set(access.Entry{ID: "id", Name: "hello", OwnerID: owner, Running: true, State: "running"})
	f.workspace = httptest.NewServer(http.HandlerFunc(f.serveWorkspace))
	t.Cleanup(f.workspace.Close)
	f.issuer = signintest.StartProvider(t, "https://"+zone.SignIn()+"/callback")
	keys, err := session.ParseKeys(session.GenerateKey())
	require.NoError(t, err)
	logger := slog.New(slog.DiscardHandler)
	signIn := signin.New(signin.Config{
		Zone: zone, Lifetime: time.Hour,
		Provider: signin.Provider{
			Issuer: f.issuer, ClientID: signintest.ClientID, ClientSecret: signintest.ClientSecret,
			LoginClaim: "preferred_username",
		},
	}, signin.Dependencies{
		Keys: keys, Users: f, Revocations: f, Workspaces: f, Logger: logger, Now: time.Now,
		Client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
	})
	require.NoError(t, signIn.Discover(t.Context()))
	f.activity = activity.New(f.clock.time)
	options := Options{Zone: zone, SignIn: signIn, Workspaces: f, Activity: f.activity, Logger: logger}
	if change != nil {
		change(&options)
	}
	front := New(options)
	t.Cleanup(front.Close)
	f.front = httptest.NewUnstartedServer(front)
	f.front.EnableHTTP2 = true
	f.front.StartTLS()
	t.Cleanup(f.front.Close)
	return f
}

func (f *fixture) ByLogin(context.Context, string) (int64, error) { return owner, nil }

func (f *fixture) Check(session.Session) error { return nil }

func (f *fixture) Changed() <-chan struct{} { return nil }

func (f *fixture) Revoke(_ context.Context, id string, until time.Time) error {
	f.Add(id, until)
	return nil
}

// clock is that of the activity.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) time() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// Connect reaches a real agent.
func (f *fixture) Connect(ctx context.Context, _ access.Entry, p sshfront.Person) (sshfront.Connection, error) {
	signer, err := f.authority.Sign("id", p.Login, authority.Rights{Terminal: true}, time.Now())
	if err != nil {
		return sshfront.Connection{}, err
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", f.agent)
	if err != nil {
		return sshfront.Connection{}, err
	}
	connection, channels, requests, err := ssh.NewClientConn(conn, f.agent, &ssh.ClientConfig{
		User: "id", Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
	})
	return sshfront.Connection{Conn: connection, Channels: channels, Requests: requests}, err
}

func (f *fixture) startAgent() {
	f.Helper()
	key, err := authority.Generate()
	require.NoError(f, err)
	f.authority, err = authority.Parse(key)
	require.NoError(f, err)
	home := f.TempDir()
	hostKey, err := sshserver.HostKey(filepath.Join(home, ".lockstep"))
	require.NoError(f, err)
	server := sshserver.New(sshserver.Options{
		Workspace: "id", HostKey: hostKey, Home: home, StateFolder: filepath.Join(home, ".lockstep"),
		Environ: []string{"PATH=" + os.Getenv("PATH"), "PS1=> "}, Logger: slog.New(slog.DiscardHandler),
		Authorities: func() ([]ssh.PublicKey, error) {
			public, _, _, _, err := ssh.ParseAuthorizedKey([]byte(f.authority.PublicKey()))
			return []ssh.PublicKey{public}, err
		},
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(f, err)
	served := make(chan error, 1)
	go func() { served <- server.Serve(f.Context(), listener) }()
	f.Cleanup(func() { require.NoError(f, <-served) }) // the context of the test has ended
	f.agent = listener.Addr().String()
}

// webSocket opens a WebSocket from a page of an origin.
func (f *fixture) webSocket(b *browser, address, origin string) *websocket.Conn {
	f.Helper()
	conn, err := f.dialWebSocket(b, address, origin)
	require.NoError(f, err)
	return conn
}

func (f *fixture) dialWebSocket(b *browser, address, origin string) (*websocket.Conn, error) {
	conn, response, err := websocket.Dial(f.Context(), address, &websocket.DialOptions{
		HTTPClient: b.Client, HTTPHeader: http.Header{"Origin": {origin}},
	})
	if err != nil {
		if response != nil && response.Body != nil {
			_ = response.Body.Close()
		}
		return nil, err
	}
	f.Cleanup(func() { _ = conn.CloseNow() })
	return conn, nil
}

func (f *fixture) Dial(ctx context.Context, id string, port int) (net.Conn, error) {
	if id != "id" || port != 3000 {
		return nil, fmt.Errorf("nothing listens on port %d of %s", port, id)
	}
	var dialer net.Dialer
	return dialer.DialContext(ctx, "tcp", f.workspace.Listener.Addr().String())
}

func (f *fixture) Start(_ context.Context, userID int64, id string) error {
	if userID != owner {
		return errors.New("you may not start it")
	}
	f.mu.Lock()
	f.started = append(f.started, id)
	f.mu.Unlock()
	f.Set(access.Entry{ID: "id", Name: "hello", OwnerID: owner, State: "starting"})
	return nil
}

// serveWorkspace is the program in the workspace.
func (f *fixture) serveWorkspace(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.received = append(f.received, r.Clone(context.Background()))
	f.mu.Unlock()
	switch r.URL.Path {
	case "/websocket":
		conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			return
		}
		defer conn.CloseNow()
		for {
			kind, data, err := conn.Read(r.Context())
			if err != nil || conn.Write(r.Context(), kind, data) != nil {
				return
			}
		}
	case "/stream":
		_, _ = io.WriteString(w, "first\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	case "/cookies":
		w.Header().Add("Set-Cookie", "for_all=1; Domain=ws.test")
		w.Header().Add("Set-Cookie", "__Host-lockstep=forged; Path=/; Secure")
		w.Header().Set("Access-Control-Allow-Origin", "*")
	default:
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %s %s", r.Method, r.URL.RequestURI(), body)
	}
}

func (f *fixture) last() *http.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	require.NotEmpty(f, f.received)
	return f.received[len(f.received)-1]
}

type browser struct{ *signintest.Browser }

// signedIn returns a browser that has opened the workspace.
func (f *fixture) signedIn() *browser {
	b := &browser{signintest.NewBrowser(f, string(zone), f.front.Listener.Addr().String(), f.issuer)}
	response, body := b.SignInAt(hello + "/")
	require.Equal(f, http.StatusOK, response.StatusCode, body)
	return b
}

func TestRequestReachesTheWorkspace(t *testing.T) {
	f := newFixture(t, nil)
	b := f.signedIn()
	request := b.Request(http.MethodPost, hello+"/a%2Fb?c=%20d", "Cookie", "own=1", "X-Forwarded-For", "6.6.6.6",
		"X-Forwarded-Proto", "http", "X-Forwarded-Host", "evil.org", "Forwarded", "for=6.6.6.6", "Connection", "X-Hop",
		"X-Hop", "1", "X-Forwarded-User", "root", "X-Real-IP", "6.6.6.6")
	request.Body = io.NopCloser(strings.NewReader("body"))
	response, body := b.Do(request)
	require.Equal(t, "POST /a%2Fb?c=%20d body", body)
	require.NotEmpty(t, response.Header.Get("Strict-Transport-Security"))
	got := f.last()
	require.Equal(t, "3000--hello.ws.test", got.Host)
	require.Equal(t, []string{"own=1"}, got.Header["Cookie"], "without the gateway's cookie")
	require.Equal(t, "127.0.0.1", got.Header.Get("X-Forwarded-For"))
	require.Equal(t, "https", got.Header.Get("X-Forwarded-Proto"))
	require.Equal(t, "3000--hello.ws.test", got.Header.Get("X-Forwarded-Host"))
	require.Empty(t, got.Header.Get("Forwarded"))
	require.Empty(t, got.Header.Get("X-Hop"))
	require.Empty(t, got.Header.Get("X-Forwarded-User"))
	require.Empty(t, got.Header.Get("X-Real-IP"))
}

func TestHTTP2IsServed(t *testing.T) {
	f := newFixture(t, nil)
	b := f.signedIn()
	cookies := b.Client.Jar.Cookies(b.Request(http.MethodGet, hello+"/").URL)
	client := f.front.Client()
	request := b.Request(http.MethodGet, "https://"+f.front.Listener.Addr().String()+"/two")
	request.Host = "3000--hello.ws.test"
	for _, c := range cookies {
		request.AddCookie(c)
	}
	response, err := client.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, 2, response.ProtoMajor)
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, "GET /two ", string(body))
	client.CloseIdleConnections()
}

func TestTrustedProxiesNameTheClient(t *testing.T) {
	f := newFixture(t, func(o *Options) {
		o.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8")}
	})
	b := f.signedIn()
	for header, want := range map[string]string{
		"6.6.6.6, 203.0.113.9, 10.1.1.1": "203.0.113.9, 10.1.1.1, 127.0.0.1",
		"not an address":                 "127.0.0.1",
		"":                               "127.0.0.1",
	} {
		b.Do(b.Request(http.MethodGet, hello+"/", "X-Forwarded-For", header))
		require.Equal(t, want, f.last().Header.Get("X-Forwarded-For"), header)
	}
}

func TestOtherPagesAreRefused(t *testing.T) {
	f := newFixture(t, nil)
	b := f.signedIn()
	before := len(f.received)
	response, _ := b.Do(b.Request(http.MethodPost, hello+"/", "Origin", "https://3000--other.ws.test"))
	require.Equal(t, http.StatusForbidden, response.StatusCode)
	response, _ = b.Do(b.Request(http.MethodPost, hello+"/.lockstep/start", "Origin", "https://evil.org"))
	require.Equal(t, http.StatusForbidden, response.StatusCode)
	require.Len(t, f.received, before)
}

func TestPortsOfAWorkspaceMayCallEachOther(t *testing.T) {
	f := newFixture(t, nil)
	b := f.signedIn()
	response, _ := b.Do(b.Request(http.MethodGet, hello+"/cookies", "Origin", "https://8080--hello.ws.test"))
	require.Equal(t, []string{"https://8080--hello.ws.test"}, response.Header["Access-Control-Allow-Origin"])
	require.Equal(t, "true", response.Header.Get("Access-Control-Allow-Credentials"))
	require.Equal(t, []string{"for_all=1"}, response.Header["Set-Cookie"], "for this host only")
	before := len(f.received)
	response, _ = b.Do(b.Request(http.MethodOptions, hello+"/", "Origin", "https://8080--hello.ws.test",
		"Access-Control-Request-Method", "PUT"))
	require.Equal(t, http.StatusNoContent, response.StatusCode)
	require.Len(t, f.received, before, "the gateway answers: the browser sends no cookie")
}

func TestStoppedWorkspaceHasAPageAndStartsByItsButtonOnly(t *testing.T) {
	f := newFixture(t, nil)
	b := f.signedIn()
	f.Set(access.Entry{ID: "id", Name: "hello", OwnerID: owner, State: "stopped"})
	response, body := b.Get(hello + "/")
	require.Equal(t, http.StatusServiceUnavailable, response.StatusCode)
	require.Contains(t, body, `<strong id="state">stopped</strong>`)
	require.Contains(t, body, "<button>Start</button>")
	require.Empty(t, f.started, "a page that loads again starts nothing")

	states, _ := b.stream(hello + "/.lockstep/state")
	require.Equal(t, `data: {"state":"stopped","running":false}`, states())
	response, _ = b.WithoutRedirects().Do(b.Request(http.MethodPost, hello+"/.lockstep/start", "Origin", hello))
	require.Equal(t, http.StatusSeeOther, response.StatusCode)
	require.Equal(t, []string{"id"}, f.started)
	require.Equal(t, `data: {"state":"starting","running":false}`, states())
	f.Set(access.Entry{ID: "id", Name: "hello", OwnerID: owner, Running: true, State: "running"})
	require.Equal(t, `data: {"state":"running","running":true}`, states())
}

// TestStateEndsWithTheRightAndWithTheSession shows that a page learns when it must ask again.
func TestStateEndsWithTheRightAndWithTheSession(t *testing.T) {
	for name, end := range map[string]func(*fixture, *browser){
		"not shared any more": func(f *fixture, _ *browser) {
			f.Set(access.Entry{ID: "id", Name: "hello", OwnerID: owner + 1, State: "stopped"})
		},
		"signed out": func(_ *fixture, b *browser) {
			b.Do(b.Request(http.MethodPost, "https://sign-in.ws.test/sign-out"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			b := f.signedIn()
			f.Set(access.Entry{
				ID: "id", Name: "hello", OwnerID: owner + 1, State: "stopped",
				Shares: []access.Share{{UserID: owner}},
			})
			_, body := b.Get(hello + "/")
			require.Contains(t, body, "Its owner can start it.")
			require.NotContains(t, body, "<button>")
			states, _ := b.stream(hello + "/.lockstep/state")
			require.Equal(t, `data: {"state":"stopped","running":false}`, states())
			end(f, b)
			require.Equal(t, "event: ended", states())
		})
	}
}

func TestWhatIsNotThereIsExplained(t *testing.T) {
	f := newFixture(t, nil)
	b := f.signedIn()
	for address, want := range map[string]struct {
		status int
		text   string
	}{
		"https://80--hello.ws.test/":     {http.StatusBadGateway, "Port 80 of hello does not answer"},
		"https://80--other.ws.test/":     {http.StatusNotFound, "There is no such workspace, or you may not enter it"},
		"https://x.ws.test/":             {http.StatusNotFound, "There is nothing at this address"},
		hello + "/.lockstep/unknown":     {http.StatusNotFound, "404"},
		hello + "/.lockstep/session":     {http.StatusBadRequest, "began in another browser"},
		"https://sign-in.ws.test/nobody": {http.StatusNotFound, "404"},
	} {
		response, body := b.Get(address)
		require.Equal(t, want.status, response.StatusCode, address)
		require.Contains(t, body, want.text)
	}
}

func TestOpenWebSocketEndsWithTheRight(t *testing.T) {
	for name, end := range map[string]func(*fixture, *browser){
		"blocked": func(f *fixture, _ *browser) { f.SetBlocked(owner, true) },
		"stopped": func(f *fixture, _ *browser) { f.Set(access.Entry{ID: "id", Name: "hello", OwnerID: owner}) },
		"signed out": func(f *fixture, b *browser) {
			response, _ := b.Do(b.Request(http.MethodPost, "https://sign-in.ws.test/sign-out"))
			require.Equal(f, http.StatusOK, response.StatusCode)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			b := f.signedIn()
			url := "wss://3000--hello.ws.test/websocket"
			_, err := f.dialWebSocket(b, url, "https://3000--other.ws.test")
			require.ErrorContains(t, err, "403")
			conn := f.webSocket(b, url, hello)
			require.NoError(t, conn.Write(t.Context(), websocket.MessageText, []byte("echo")))
			_, data, err := conn.Read(t.Context())
			require.NoError(t, err)
			require.Equal(t, "echo", string(data))
			began := time.Now()
			end(f, b)
			_, _, err = conn.Read(t.Context())
			require.Error(t, err)
			require.Less(t, time.Since(began), time.Second)
		})
	}
}

func TestOpenAnswerEndsWithTheRight(t *testing.T) {
	f := newFixture(t, nil)
	b := f.signedIn()
	lines, end := b.stream(hello + "/stream")
	require.Equal(t, "first", lines())
	f.SetBlocked(owner, true)
	require.Error(t, end())
}

// stream opens an address and returns how to read its lines that are not empty, and its end.
func (b *browser) stream(address string) (line func() string, end func() error) {
	return b.streamAs(address)
}

// streamAs sends headers, too.
func (b *browser) streamAs(address string, headers ...string) (line func() string, end func() error) {
	response, err := b.Client.Do(b.Request(http.MethodGet, address, headers...))
	require.NoError(b, err)
	b.Cleanup(func() { _ = response.Body.Close() })
	reader := bufio.NewReader(response.Body)
	line = func() string {
		for {
			text, err := reader.ReadString('\n')
			require.NoError(b, err)
			if text = strings.TrimSpace(text); text != "" {
				return text
			}
		}
	}
	return line, func() error {
		_, err := reader.ReadString('\n')
		return err
	}
}
