package clone

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"lockstep.internal/libs/workspaceagent"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// gitServer serves the repositories of a folder: by git's own program over HTTPS, for one account.
type gitServer struct {
	*testing.T

	folder string
	web    *httptest.Server

	mu      sync.Mutex
	headers []http.Header // of requests
}

const (
	account  = "ada"
	password = "s3cret/+"
)

func newGitServer(t *testing.T) *gitServer {
	s := &gitServer{T: t, folder: t.TempDir()}
	path, err := exec.Command("git", "--exec-path").Output()
	require.NoError(t, err)
	backend := &cgi.Handler{
		Path:   filepath.Join(strings.TrimSpace(string(path)), "git-http-backend"),
		Env:    []string{"GIT_PROJECT_ROOT=" + s.folder, "GIT_HTTP_EXPORT_ALL=1"},
		Stderr: io.Discard,
	}
	s.web = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.headers = append(s.headers, r.Header.Clone())
		s.mu.Unlock()
		private := !strings.HasPrefix(r.URL.Path, "/public/")
		if user, pass, _ := r.BasicAuth(); private && (user != account || pass != password) {
			w.Header().Set("WWW-Authenticate", "Basic")
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(w, r)
	}))
	t.Cleanup(s.web.Close)
	return s
}

func (s *gitServer) git(folder string, arguments ...string) string {
	command := exec.Command("git", append([]string{
		"-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=main",
		"-c", "protocol.file.allow=always",
	}, arguments...)...)
	command.Dir = folder
	command.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	output, err := command.CombinedOutput()
	require.NoError(s, err, "git %s: %s", arguments, output)
	return strings.TrimSpace(string(output))
}

// repository creates a repository with three commits in main, a branch "next" and a tag "v1".
func (s *gitServer) repository(name string) (folder string) {
	folder = filepath.Join(s.folder, name)
	require.NoError(s, os.MkdirAll(folder, 0o755))
	s.git(folder, "init", "--quiet")
	for i := range 3 {
		s.commit(folder, "file", fmt.Sprintf("%s %d", name, i))
		if i == 1 {
			s.git(folder, "tag", "v1")
		}
	}
	s.git(folder, "branch", "next")
	return folder
}

func (s *gitServer) commit(folder, file, content string) {
	require.NoError(s, os.WriteFile(filepath.Join(folder, file), []byte(content), 0o600))
	s.git(folder, "add", file)
	s.git(folder, "commit", "--quiet", "-m", content)
}

func (s *gitServer) authority() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.web.Certificate().Raw})
}

func (s *gitServer) url(name string) string { return s.web.URL + "/" + name + "/.git" }

// secrets writes files of credentials: those of this server, changed by the given ones; an empty content removes one.
func (s *gitServer) secrets(files map[string]string) *Credentials {
	folder := s.TempDir()
	all := map[string]string{
		workspaceagent.Authorities: string(s.authority()),
		workspaceagent.GitCredentials: "# accounts\n" +
			strings.Replace(s.web.URL, "://", "://"+account+":s3cret%2F%2B@", 1) + "\n",
	}
	maps.Copy(all, files)
	for name, content := range all {
		if content != "" {
			require.NoError(s, os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600))
		}
	}
	credentials, err := LoadCredentials(folder)
	require.NoError(s, err)
	return credentials
}

func (s *gitServer) cloner(credentials *Credentials) *Cloner {
	return New(s.TempDir(), credentials, io.Discard)
}

// sshGitServer serves the repositories of a folder over SSH to one key. It is a part of an SSH server: git's own
// program answers.
func (s *gitServer) sshGitServer() (address string, secrets map[string]string) {
	hostKey, _ := newKey(s)
	clientKey, clientPEM := newKey(s)
	config := &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		if string(key.Marshal()) != string(clientKey.PublicKey().Marshal()) {
			return nil, errors.New("unknown key")
		}
		return &ssh.Permissions{}, nil
	}}
	config.AddHostKey(hostKey)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(s, err)
	var connections sync.WaitGroup
	s.Cleanup(func() {
		_ = listener.Close()
		connections.Wait()
	})
	connections.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			connections.Go(func() { s.serveSSH(conn, config) })
		}
	})
	address = listener.Addr().String()
	host, port, err := net.SplitHostPort(address)
	require.NoError(s, err)
	return address, map[string]string{
		workspaceagent.SSHKey:     clientPEM,
		workspaceagent.KnownHosts: "[" + host + "]:" + port + " " + string(ssh.MarshalAuthorizedKey(hostKey.PublicKey())),
	}
}

func (s *gitServer) serveSSH(raw net.Conn, config *ssh.ServerConfig) {
	defer raw.Close()
	conn, channels, requests, err := ssh.NewServerConn(raw, config)
	if err != nil {
		return // a client that was refused
	}
	defer conn.Close()
	go ssh.DiscardRequests(requests)
	for offered := range channels {
		channel, requests, err := offered.Accept()
		if err != nil {
			return
		}
		for request := range requests {
			var value struct{ Command string }
			if request.Type != "exec" || ssh.Unmarshal(request.Payload, &value) != nil {
				_ = request.Reply(request.Type == "env", nil)
				continue
			}
			_ = request.Reply(true, nil)
			command := exec.Command("sh", "-c", value.Command)
			command.Dir, command.Stdout, command.Stdin = s.folder, channel, channel
			_ = command.Run()
			_, _ = channel.SendRequest("exit-status", false, make([]byte, 4))
			_ = channel.Close()
		}
	}
}

func newKey(t testing.TB) (ssh.Signer, string) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	signer, err := ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	block, err := ssh.MarshalPrivateKey(private, "")
	require.NoError(t, err)
	return signer, string(pem.EncodeToMemory(block))
}
