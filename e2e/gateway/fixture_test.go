package gateway_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/config"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/gateway"
	"lockstep.internal/services/gateway/address"
	"lockstep.internal/services/gateway/signin/signintest"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/stack"
)

// shared is a system with a gateway whose services are programs of their own. Workspaces run their real agent.
var shared = fixture.Share(func(tb testing.TB) stack.Options {
	provider := withProvider(tb)
	return stack.Options{Programs: fixture.BuildServices(tb), Gateway: true, Configure: func(service string, cfg any) {
		askOften(service, cfg)
		provider(service, cfg)
	}}
}, nil, nil)

func TestMain(m *testing.M) {
	if os.Getenv(editorVariable) != "" {
		fmt.Fprintln(os.Stderr, runEditor())
		os.Exit(1)
	}
	os.Exit(fixture.Main(m, 4))
}

// withProvider lets people sign in at an OpenID Connect provider of the test, too.
func withProvider(tb testing.TB) func(service string, cfg any) {
	tb.Helper()
	secret := filepath.Join(tb.TempDir(), "client.secret")
	require.NoError(tb, os.WriteFile(secret, []byte(signintest.ClientSecret), 0o600))
	var start sync.Once
	var issuer string
	return func(_ string, cfg any) {
		c, is := cfg.(*gateway.Config)
		if !is {
			return
		}
		start.Do(func() {
			issuer = signintest.StartProvider(tb, "https://"+address.Zone(c.Zone).SignIn()+"/callback", ownerLogin, guestLogin)
		})
		c.SignIn.Issuer, c.SignIn.ClientID, c.SignIn.LoginClaim = issuer, signintest.ClientID, "preferred_username"
		c.SignIn.ClientSecretFile = config.SecretFile(secret)
	}
}

// webPort is the port of the program in each workspace.
const webPort = 8080

// person is somebody who enters workspaces.
type person struct {
	t      testing.TB
	system *fixture.System
	name   string
	cli    fixture.CLI
	key    string // file with a registered private key
	config string // file with the configuration of OpenSSH
}

// newPerson creates a developer with a registered SSH key.
func newPerson(t testing.TB, s *fixture.System, name string) *person {
	t.Helper()
	user := s.NewUser(name, s.ProjectID, statev1.Role_ROLE_DEVELOPER)
	cli := fixture.NewCLI(t).With(client.Variable+"="+s.ClientFile(), "LOCKSTEP_TOKEN="+user.Token)
	p := &person{
		t: t, system: s, name: name, cli: cli, key: filepath.Join(t.TempDir(), "key"),
	}
	p.config = filepath.Join(filepath.Dir(p.key), "config")
	output, err := exec.CommandContext(t.Context(), "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", p.key).
		CombinedOutput()
	require.NoError(t, err, "%s", output)
	cli.OK("ssh-key", "add", p.key+".pub", "--name", name)
	return p
}

// create creates a workspace of the person, with a program at webPort that answers requests and echoes WebSockets.
func (p *person) create(name string) {
	p.t.Helper()
	p.cli.OK("ws", "create", name, "--port", "web=8080", "--wait")
	p.serve(name)
}

// serve runs the program of a workspace that runs.
func (p *person) serve(name string) {
	p.t.Helper()
	made := fixture.ParseOutput(p.t, p.cli.OK("ws", "get", name, "-o", "json"), &statev1.GetWorkspaceResponse{})
	w := p.system.WorkspaceOf(made.GetWorkspace())
	pods, err := p.system.Kube.CoreV1().Pods(w.Namespace).List(p.t.Context(), metav1.ListOptions{})
	require.NoError(p.t, err)
	require.Len(p.t, pods.Items, 1)
	_, rest, _ := strings.Cut(pods.Items[0].Status.PodIP, ".")
	var listening net.ListenConfig
	listener, err := listening.Listen(p.t.Context(), "tcp", net.JoinHostPort("127."+rest, strconv.Itoa(webPort)))
	require.NoError(p.t, err, "the address of the pod's processes")
	server := httptest.NewUnstartedServer(http.HandlerFunc(serve))
	require.NoError(p.t, server.Listener.Close())
	server.Listener = listener
	server.Start()
	p.t.Cleanup(server.Close)
}

func serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/echo" {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, echoPage) // the browser may have left
		return
	}
	if r.Header.Get("Upgrade") == "" {
		fmt.Fprintf(w, "hello from %s, cookies %d", r.Host, len(r.Cookies()))
		return
	}
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return
	}
	defer conn.CloseNow()
	for {
		kind, message, err := conn.Read(r.Context())
		if err != nil || conn.Write(r.Context(), kind, message) != nil {
			return
		}
	}
}

// writeConfig writes what `ws ssh-config` prints for a workspace to a file.
func (p *person) writeConfig(workspace string) {
	p.t.Helper()
	text := p.cli.OK("ws", "ssh-config", workspace, "--key", p.key)
	require.NoError(p.t, os.WriteFile(p.config, []byte(text), 0o600))
}

// openSSH runs a program of OpenSSH with the registered key.
func (p *person) openSSH(program string, arguments ...string) (string, error) {
	p.t.Helper()
	return p.openSSHWith(nil, program, arguments...)
}

// openSSHWith is openSSH with a standard input.
func (p *person) openSSHWith(input io.Reader, program string, arguments ...string) (string, error) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), fixture.Timeout)
	defer cancel()
	var output bytes.Buffer
	cmd := p.command(ctx, program, arguments...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = input, &output, &output
	err := cmd.Run()
	return output.String(), err
}

func (p *person) command(ctx context.Context, program string, arguments ...string) *exec.Cmd {
	return exec.CommandContext(ctx, program, append([]string{"-F", p.config, "-o", "BatchMode=yes"}, arguments...)...)
}

// awaitSSH runs a command in a workspace until it succeeds: a key and a share count at the gateway a moment later.
func (p *person) awaitSSH(workspace, command, want string) {
	p.t.Helper()
	require.Eventually(p.t, func() bool {
		output, err := p.openSSH("ssh", workspace+".lockstep", command)
		return err == nil && output == want
	}, fixture.Timeout, fixture.PollInterval, "%s in %s", command, workspace)
}

// browser returns a browser with a session of the person, which reaches the hosts of the zone at a replica.
type browser struct {
	t      testing.TB
	client *http.Client
}

var codeField = regexp.MustCompile(`name="code" value="([^"]+)"`)

// signIn signs a browser in at the first gateway by the link of `ws open`.
func (p *person) signIn(workspace string) *browser {
	p.t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(p.t, err)
	b := newBrowser(p.t, p.system, stack.Gateway, jar)
	link := strings.TrimSpace(p.cli.OK("ws", "open", workspace, "--port", strconv.Itoa(webPort), "--no-browser"))
	_, page := b.get(link)
	code := codeField.FindStringSubmatch(page)
	require.NotNil(p.t, code, page)
	request, err := http.NewRequestWithContext(p.t.Context(), http.MethodPost, p.system.GatewayURL()+"/cli/open",
		strings.NewReader(url.Values{"code": {code[1]}}.Encode()))
	require.NoError(p.t, err)
	request.Header.Set("Origin", p.system.GatewayURL())
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	direct := *b.client
	direct.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	status, page := (&browser{t: p.t, client: &direct}).do(request)
	require.Equal(p.t, http.StatusSeeOther, status, page)
	return b
}

func newBrowser(t testing.TB, s *fixture.System, replica string, jar http.CookieJar) *browser {
	t.Helper()
	authority, err := os.ReadFile(s.GatewayCAFile())
	require.NoError(t, err)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(authority))
	at := s.Address(replica, stack.ListenerWeb)
	require.NotEmpty(t, at)
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, at)
		},
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &browser{t: t, client: &http.Client{Jar: jar, Transport: transport}}
}

func (b *browser) get(address string) (int, string) {
	b.t.Helper()
	request, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, address, nil)
	require.NoError(b.t, err)
	return b.do(request)
}

func (b *browser) do(request *http.Request) (int, string) {
	b.t.Helper()
	response, err := b.client.Do(request)
	require.NoError(b.t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(b.t, err)
	return response.StatusCode, string(body)
}

// webSocket opens a WebSocket to a port of a workspace and requires an echo.
func (b *browser) webSocket(address string) *websocket.Conn {
	b.t.Helper()
	conn, _, err := websocket.Dial(b.t.Context(), strings.Replace(address, "https:", "wss:", 1),
		&websocket.DialOptions{HTTPClient: b.client, HTTPHeader: http.Header{"Origin": {address}}})
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = conn.CloseNow() })
	require.NoError(b.t, conn.Write(b.t.Context(), websocket.MessageText, []byte("echo")))
	_, message, err := conn.Read(b.t.Context())
	require.NoError(b.t, err)
	require.Equal(b.t, "echo", string(message))
	return conn
}

// requireEnds waits until the other side ends a WebSocket.
func requireEnds(t testing.TB, conn *websocket.Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fixture.Timeout)
	defer cancel()
	_, _, err := conn.Read(ctx)
	require.Error(t, err)
	require.NoError(t, ctx.Err(), "the gateway ends it")
}
