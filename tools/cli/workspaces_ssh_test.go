package cli

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
	"lockstep.internal/tools/client"
)

const personalToken, gatewayToken = "personal", "access-of-personal"

// enteringFixture is a cell with a workspace, and a gateway with an SSH server that runs no programs.
type enteringFixture struct {
	statev1connect.UnimplementedWorkspaceServiceHandler
	statev1connect.UnimplementedTokenServiceHandler
	statev1connect.UnimplementedGatewayServiceHandler
	statev1connect.UnimplementedDirectoryServiceHandler

	state     statev1.ActualState
	gateway   *httptest.Server
	api       string
	folder    string
	knownHost string // line that the gateway returns
	sshPort   string
	userKey   ssh.PublicKey // key of a person that the gateway knows
	challenge string

	mu       sync.Mutex
	commands []string // "user: command"
	revoked  []int64
}

func setupEntering(t *testing.T) *enteringFixture {
	t.Helper()
	f := &enteringFixture{state: statev1.ActualState_ACTUAL_STATE_RUNNING, folder: t.TempDir()}
	f.serveSSH(t)
	f.gateway = httptest.NewTLSServer(http.HandlerFunc(f.serveGateway))
	faults := connect.WithInterceptors(fault.NewInterceptor(slog.New(slog.DiscardHandler)))
	mux := http.NewServeMux()
	mux.Handle(statev1connect.NewWorkspaceServiceHandler(f, faults))
	mux.Handle(statev1connect.NewTokenServiceHandler(f, faults))
	mux.Handle(statev1connect.NewGatewayServiceHandler(f, faults))
	mux.Handle(statev1connect.NewDirectoryServiceHandler(f, faults))
	server := httptest.NewServer(mux)
	f.api = server.URL
	t.Cleanup(func() {
		closeIdle()
		server.Close()
		f.gateway.Close()
	})
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.gateway.Certificate().Raw})
	require.NoError(t, os.WriteFile(filepath.Join(f.folder, "ca.crt"), ca, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(f.folder, "token"), []byte(personalToken), 0o600))
	return f
}

// run executes a command line with a folder of its own for the client configuration.
func (f *enteringFixture) run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs strings.Builder
	code = Run(t.Context(), append([]string{
		"--client", f.clientFile(), "--server", f.api, "--gateway-ca-file", filepath.Join(f.folder, "ca.crt"),
	}, args...), &out, &errs, "test")
	return code, out.String(), errs.String()
}

func (f *enteringFixture) clientFile() string {
	return filepath.Join(f.folder, "client", "client.yaml")
}

func (f *enteringFixture) tokenFlag() string {
	return "--token-file=" + filepath.Join(f.folder, "token")
}

func (f *enteringFixture) GetGateway(
	context.Context, *connect.Request[statev1.GetGatewayRequest],
) (*connect.Response[statev1.GetGatewayResponse], error) {
	answer := &statev1.GetGatewayResponse{}
	if f.gateway != nil {
		answer.Url = f.gateway.URL
	}
	return connect.NewResponse(answer), nil
}

func (f *enteringFixture) GetWorkspace(
	context.Context, *connect.Request[statev1.GetWorkspaceRequest],
) (*connect.Response[statev1.GetWorkspaceResponse], error) {
	return connect.NewResponse(&statev1.GetWorkspaceResponse{Workspace: &statev1.Workspace{
		Id: "id-of-hello", Name: "hello", ActualState: f.state,
	}}), nil
}

func (f *enteringFixture) WhoAmI(
	context.Context, *connect.Request[statev1.WhoAmIRequest],
) (*connect.Response[statev1.WhoAmIResponse], error) {
	return connect.NewResponse(&statev1.WhoAmIResponse{User: &statev1.User{Id: 5}}), nil
}

func (f *enteringFixture) ListWorkspaces(
	_ context.Context, r *connect.Request[statev1.ListWorkspacesRequest],
) (*connect.Response[statev1.ListWorkspacesResponse], error) {
	answer := &statev1.ListWorkspacesResponse{}
	if r.Msg.GetFilter().GetUserId() == 5 {
		answer.Workspaces = []*statev1.Workspace{{Name: "hello"}, {Name: "another"}}
	}
	return connect.NewResponse(answer), nil
}

func (f *enteringFixture) ExchangeToken(
	_ context.Context, r *connect.Request[statev1.ExchangeTokenRequest],
) (*connect.Response[statev1.ExchangeTokenResponse], error) {
	if r.Msg.GetAudience()[0] != client.GatewayAudience {
		return nil, fault.New(errcode.InvalidArgument, "not for the gateway")
	}
	personal := strings.TrimPrefix(r.Header().Get("Authorization"), "Bearer ")
	return connect.NewResponse(&statev1.ExchangeTokenResponse{
		AccessToken: "access-of-" + personal, ExpiresAt: timestamppb.New(time.Now().Add(time.Minute)),
	}), nil
}

func (f *enteringFixture) ListTokens(
	context.Context, *connect.Request[statev1.ListTokensRequest],
) (*connect.Response[statev1.ListTokensResponse], error) {
	stored, err := client.Read(f.clientFile())
	return connect.NewResponse(&statev1.ListTokensResponse{Tokens: []*statev1.Token{
		{Id: 1, Name: "other"}, {Id: 2, Name: "command line on " + stored.LoginName},
	}}), err
}

func (f *enteringFixture) RevokeToken(
	_ context.Context, r *connect.Request[statev1.RevokeTokenRequest],
) (*connect.Response[statev1.RevokeTokenResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.revoked = append(f.revoked, r.Msg.GetId())
	return connect.NewResponse(&statev1.RevokeTokenResponse{}), nil
}

// serveGateway is the sign-in host.
func (f *enteringFixture) serveGateway(w http.ResponseWriter, r *http.Request) {
	var answer map[string]any
	switch r.URL.Path {
	case "/.well-known/lockstep":
		answer = map[string]any{"zone": "ws.localhost", "ssh": map[string]any{
			"address": "ws.localhost:" + f.sshPort, "known_hosts": []string{f.knownHost},
		}}
	case "/cli":
		f.challenge = r.URL.Query().Get("challenge")
		answer = map[string]any{}
	case "/cli/token":
		var request struct {
			Code     string `json:"code"`
			Verifier string `json:"verifier"`
		}
		_ = json.NewDecoder(r.Body).Decode(&request) // an empty request is refused
		sum := sha256.Sum256([]byte(request.Verifier))
		if request.Code != "the-code" || base64.RawURLEncoding.EncodeToString(sum[:]) != f.challenge {
			w.WriteHeader(http.StatusUnauthorized)
			answer = map[string]any{"code": "unauthenticated", "message": "the code is not valid"}
			break
		}
		answer = map[string]any{"token": personalToken, "expires_at": time.Now().Add(time.Hour)}
	case "/cli/session":
		var request struct {
			Workspace string `json:"workspace"`
			Port      int    `json:"port"`
		}
		_ = json.NewDecoder(r.Body).Decode(&request) // the answer shows it
		answer = map[string]any{"url": fmt.Sprintf("https://sign-in.ws.localhost/cli/open?code=%s-%d-%s",
			request.Workspace, request.Port, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))}
	case "/cli/reset-host-key":
		answer = map[string]any{}
		raw, err := io.ReadAll(r.Body)
		if got := string(raw) + r.Header.Get("Authorization"); err != nil ||
			got != `{"workspace":"hello"}Bearer `+gatewayToken {
			w.WriteHeader(http.StatusForbidden)
			answer = map[string]any{"message": "not " + got}
		}
	}
	content, err := json.Marshal(answer)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = w.Write(content) // the client reports it
}

// serveSSH serves sessions that print their command and end with status 3.
func (f *enteringFixture) serveSSH(t *testing.T) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	key, err := ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	config := &ssh.ServerConfig{PasswordCallback: func(_ ssh.ConnMetadata, password []byte) (*ssh.Permissions, error) {
		if string(password) != gatewayToken {
			return nil, fmt.Errorf("wrong password")
		}
		return &ssh.Permissions{}, nil
	}}
	config.PublicKeyCallback = func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		if f.userKey == nil || !bytes.Equal(key.Marshal(), f.userKey.Marshal()) {
			return nil, fmt.Errorf("unknown key")
		}
		return &ssh.Permissions{}, nil
	}
	config.AddHostKey(key)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, f.sshPort, _ = net.SplitHostPort(listener.Addr().String())
	f.knownHost = fmt.Sprintf("[ws.localhost]:%s %s", f.sshPort,
		strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key.PublicKey()))))
	var open sync.WaitGroup
	open.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			open.Go(func() { f.serveSSHConnection(conn, config) })
		}
	})
	t.Cleanup(func() { _ = listener.Close(); open.Wait() })
}

func (f *enteringFixture) serveSSHConnection(raw net.Conn, config *ssh.ServerConfig) {
	conn, channels, requests, err := ssh.NewServerConn(raw, config)
	if err != nil {
		_ = raw.Close()
		return
	}
	defer func() { _ = conn.Close() }()
	var open sync.WaitGroup
	defer open.Wait()
	open.Go(func() { ssh.DiscardRequests(requests) })
	for offered := range channels {
		channel, requests, err := offered.Accept()
		if err != nil {
			return
		}
		open.Go(func() {
			for r := range requests {
				if r.Type != "exec" {
					_ = r.Reply(r.Type == "env", nil)
					continue
				}
				_ = r.Reply(true, nil)
				var command struct{ Line string }
				_ = ssh.Unmarshal(r.Payload, &command)
				f.mu.Lock()
				f.commands = append(f.commands, conn.User()+": "+command.Line)
				f.mu.Unlock()
				_, _ = io.WriteString(channel, "ran "+command.Line+"\n")
				_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{3}))
				_ = channel.Close()
			}
		})
	}
}

func TestSSHRunsOpenSSHWithATokenAndTheHostKeyOfTheGateway(t *testing.T) {
	t.Parallel()
	f := setupEntering(t)
	code, stdout, stderr := f.run(t, f.tokenFlag(), "ws", "ssh", "hello", "--", "make", "-C", "x", "test")
	require.Equal(t, 3, code, stderr)
	require.Equal(t, "ran make -C x test\n", stdout)
	require.Equal(t, []string{"hello: make -C x test"}, f.commands, "the user is the workspace's name")
	entries, err := os.ReadDir(filepath.Join(filepath.Dir(f.clientFile()), "ssh"))
	require.NoError(t, err)
	require.Len(t, entries, 3)
	for _, entry := range entries {
		info, err := entry.Info()
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o077, entry.Name())
		content, err := os.ReadFile(filepath.Join(filepath.Dir(f.clientFile()), "ssh", entry.Name()))
		require.NoError(t, err)
		require.NotContains(t, string(content), gatewayToken, "the token is in no file")
	}
}

func TestSSHRefusesAnotherHostKey(t *testing.T) {
	t.Parallel()
	f := setupEntering(t)
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	other, err := ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	f.knownHost = fmt.Sprintf("[ws.localhost]:%s %s", f.sshPort, ssh.MarshalAuthorizedKey(other.PublicKey()))
	f.knownHost = strings.TrimSpace(f.knownHost)
	code, _, stderr := f.run(t, f.tokenFlag(), "ws", "ssh", "hello", "--", "true")
	require.Equal(t, 255, code)
	require.Contains(t, stderr, "Host key verification failed")
	require.Empty(t, f.commands)
}

func TestEnteringExplainsWhatIsMissing(t *testing.T) {
	t.Parallel()
	f := setupEntering(t)
	f.state = statev1.ActualState_ACTUAL_STATE_STOPPED
	code, _, stderr := f.run(t, f.tokenFlag(), "ws", "ssh", "hello")
	require.Equal(t, 8, code)
	require.Equal(t, "lockstep: workspace \"hello\" is not running but stopped: start it with "+
		"`lockstep ws start hello --wait`\n", stderr)
	f.state = statev1.ActualState_ACTUAL_STATE_RUNNING
	gateway := f.gateway
	f.gateway = nil
	code, _, stderr = f.run(t, f.tokenFlag(), "ws", "ssh", "hello")
	require.Equal(t, 8, code)
	require.Contains(t, stderr, "this system has no gateway")
	f.gateway = gateway
	for _, args := range [][]string{
		{"port-forward", "hello", "0"},
		{"port-forward", "hello", "3000:x"},
		{"cp", "a", "b"},
		{"cp", "hello:a", "hello:b"},
	} {
		code, _, stderr = f.run(t, append([]string{f.tokenFlag(), "ws"}, args...)...)
		require.Equal(t, 2, code, stderr)
		require.Contains(t, stderr, "must be")
	}
}

func TestOpenSSHFindsWorkspacesByName(t *testing.T) {
	f := setupEntering(t)
	home := filepath.Join(f.folder, "home")
	t.Setenv("HOME", home)
	own := filepath.Join(home, ".ssh", "config")
	require.NoError(t, os.MkdirAll(filepath.Dir(own), 0o700))
	require.NoError(t, os.WriteFile(own, []byte("Host other\n  Port 2200\n"), 0o600))
	keyFile := filepath.Join(f.folder, "key")
	f.userKey = writeKey(t, keyFile)

	code, printed, stderr := f.run(t, f.tokenFlag(), "ws", "ssh-config", "hello")
	require.Zero(t, code, stderr)
	require.Contains(t, printed, "Host hello.lockstep\n  User hello\n")
	require.NotContains(t, printed, "another")
	for range 2 { // the second time changes nothing
		code, _, stderr = f.run(t, f.tokenFlag(), "ws", "ssh-config", "--install", "--key", keyFile)
		require.Zero(t, code, stderr)
		require.Contains(t, stderr, "ssh WORKSPACE.lockstep")
	}
	config, err := os.ReadFile(own)
	require.NoError(t, err)
	hosts := filepath.Join(filepath.Dir(f.clientFile()), "ssh", "hosts")
	require.Equal(t, fmt.Sprintf("Include %q\nHost other\n  Port 2200\n", hosts), string(config))
	var exit *exec.ExitError
	for _, name := range []string{"hello", "another"} {
		output, err := exec.CommandContext(t.Context(), "ssh", "-F", own, "-o", "BatchMode=yes", name+".lockstep",
			"make").Output()
		require.ErrorAs(t, err, &exit)
		require.Equal(t, 3, exit.ExitCode(), string(exit.Stderr))
		require.Equal(t, "ran make\n", string(output))
	}
	require.Equal(t, []string{"hello: make", "another: make"}, f.commands)

	code, _, stderr = f.run(t, f.tokenFlag(), "ws", "ssh-config", "--key", "a\"b")
	require.Equal(t, 2, code)
	require.Contains(t, stderr, "choose another path")
}

// writeKey writes a private key and returns its public key.
func writeKey(t *testing.T, path string) ssh.PublicKey {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	block, err := ssh.MarshalPrivateKey(private, "")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(block), 0o600))
	signer, err := ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	return signer.PublicKey()
}

func TestSSHWithoutOpenSSHIsExplained(t *testing.T) {
	f := setupEntering(t)
	t.Setenv("PATH", t.TempDir())
	code, _, stderr := f.run(t, f.tokenFlag(), "ws", "ssh", "hello")
	require.Equal(t, 8, code)
	require.Contains(t, stderr, "apt-get install openssh-client")
}

func TestPathsOfCopies(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ source, target, workspace, words string }{
		{"notes.txt", "hello:", "hello", "notes.txt hello:"},
		{"hello:a/b", "./c:d", "hello", "hello:a/b ./c:d"},
		{"./a:b", "hello:x", "hello", "./a:b hello:x"},
		{"/a:b", "hello:x", "hello", "/a:b hello:x"},
	} {
		workspace, words, err := copyArguments(tc.source, tc.target)
		require.NoError(t, err)
		require.Equal(t, tc.workspace, workspace)
		require.Equal(t, tc.words, strings.Join(words(workspace), " "))
	}
}

func TestOpenPrintsALinkForTheBrowser(t *testing.T) {
	t.Parallel()
	f := setupEntering(t)
	code, stdout, stderr := f.run(t, f.tokenFlag(), "ws", "open", "hello", "--port=3000", "--no-browser")
	require.Zero(t, code, stderr)
	require.Equal(t, "https://sign-in.ws.localhost/cli/open?code=hello-3000-"+gatewayToken+"\n", stdout)
}

func TestResetHostKeyAsksTheGateway(t *testing.T) {
	t.Parallel()
	f := setupEntering(t)
	code, _, stderr := f.run(t, f.tokenFlag(), "ws", "reset-host-key", "hello")
	require.Zero(t, code, stderr)
	require.Contains(t, stderr, "accepts the next host key of workspace hello")
}
