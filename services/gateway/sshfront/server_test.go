package sshfront

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"lockstep.internal/services/gateway/access"
)

func TestOpenSSHReachesWorkspaces(t *testing.T) {
	f := newFixture(t, nil)
	run := f.openSSH()
	must := func(program string, arguments ...string) string {
		output, err := run(program, arguments...)
		require.NoError(t, err, output)
		return output
	}
	require.Equal(t, "id-of-hello\n", must("ssh", "hello@gateway", "echo $WORKSPACE"))
	require.Equal(t, "id-of-second\n", must("ssh", "-l", "second", "gateway", "echo $WORKSPACE"))
	require.Contains(t, must("ssh", "-tt", "hello@gateway", "tty"), "/dev/pts/")
	output, err := run("ssh", "hello@gateway", "echo problem >&2; exit 7")
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 7, exit.ExitCode())
	require.Equal(t, "problem\n", output)

	content := strings.Repeat("0123456789abcdef", 1<<16)
	local := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(local, []byte(content), 0o600))
	must("scp", "-q", local, "hello@gateway:copied")
	copied, err := os.ReadFile(filepath.Join(f.homes["id-of-hello"], "copied"))
	require.NoError(t, err)
	require.Equal(t, content, string(copied))
	batch := filepath.Join(t.TempDir(), "batch")
	require.NoError(t, os.WriteFile(batch, []byte("put "+local+" put\n"), 0o600))
	must("sftp", "-q", "-b", batch, "hello@gateway")
	put, err := os.ReadFile(filepath.Join(f.homes["id-of-hello"], "put"))
	require.NoError(t, err)
	require.Equal(t, content, string(put))

	// By a jump: the gateway answers for all names.
	require.Equal(t, "id-of-second\n", must("ssh", "-J", "anything@gateway", "second", "echo $WORKSPACE"))
	require.Equal(t, "id-of-second\n", must("ssh", "-J", "hello@gateway", "second", "echo $WORKSPACE"))
}

func TestPortsAreForwardedBothWays(t *testing.T) {
	f := newFixture(t, nil)
	client, err := f.dial("hello", ssh.PublicKeys(f.adasKey))
	require.NoError(t, err)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "in the workspace")
	}))
	defer server.Close()
	transport := &http.Transport{DialContext: client.DialContext, DisableKeepAlives: true}
	response, err := (&http.Client{Transport: transport}).Get(server.URL)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, "in the workspace", string(body))

	listener, err := client.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}
	}()
	conn, err := net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	_, err = conn.Write([]byte("to the client"))
	require.NoError(t, err)
	half, ok := conn.(*net.TCPConn)
	require.True(t, ok)
	require.NoError(t, half.CloseWrite())
	back, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.Equal(t, "to the client", string(back))
}

func TestAgentOfThePersonIsForwarded(t *testing.T) {
	f := newFixture(t, nil)
	client, err := f.dial("hello", ssh.PublicKeys(f.adasKey))
	require.NoError(t, err)
	require.NoError(t, agent.ForwardToAgent(client, agent.NewKeyring()))
	session, err := client.NewSession()
	require.NoError(t, err)
	require.NoError(t, agent.RequestAgentForwarding(session))
	output, _ := session.CombinedOutput("ssh-add -l")
	require.Equal(t, "The agent has no identities.\n", string(output))
}

func TestAccessTokenIsAPassword(t *testing.T) {
	f := newFixture(t, nil)
	client, err := f.dial("hello", ssh.Password(token))
	require.NoError(t, err)
	require.Equal(t, "id-of-hello\n", f.run(client, "echo $WORKSPACE"))
	_, err = f.dial("hello", ssh.Password("wrong"))
	require.ErrorContains(t, err, "unable to authenticate")
	other, _ := newKey(t)
	_, err = f.dial("hello", ssh.PublicKeys(other))
	require.ErrorContains(t, err, "unable to authenticate")
}

func TestConnectionEndsWithItsToken(t *testing.T) {
	f := newFixture(t, nil)
	byToken, err := f.dial("hello", ssh.Password(token))
	require.NoError(t, err)
	byKey, err := f.dial("hello", ssh.PublicKeys(f.adasKey))
	require.NoError(t, err)
	f.run(byToken, "true")
	close(f.revoked)
	require.Error(t, byToken.Wait())
	require.Equal(t, "id-of-hello\n", f.run(byKey, "echo $WORKSPACE"))
}

func TestInputIsActivityAndOutputIsNot(t *testing.T) {
	f := newFixture(t, nil)
	client, err := f.dial("hello", ssh.PublicKeys(f.adasKey))
	require.NoError(t, err)
	_, _, err = client.SendRequest("keepalive@openssh.com", true, nil)
	require.NoError(t, err)
	require.Empty(t, f.activity.Take())
	session, err := client.NewSession()
	require.NoError(t, err)
	defer session.Close()
	session.Stdin = strings.NewReader("typed")
	output, err := session.Output("cat")
	require.NoError(t, err)
	require.Equal(t, "typed", string(output))
	records := f.activity.Take()
	require.Len(t, records, 1)
	require.Equal(t, "id-of-hello", records[0].WorkspaceID)
	require.Equal(t, int64(ada), records[0].UserID)
	require.Equal(t, 1, records[0].Sessions)
	require.GreaterOrEqual(t, records[0].ReceivedBytes, int64(len("typed")))
}

func TestSessionsSayWhyThereIsNoWorkspace(t *testing.T) {
	f := newFixture(t, nil)
	f.table.Set(access.Entry{ID: "id-of-second", Name: "second", OwnerID: ada, State: "stopped"})
	f.mu.Lock()
	f.agents["id-of-hello"] = "127.0.0.1:1"
	f.mu.Unlock()
	for name, c := range map[string]struct{ workspace, token, want string }{
		"unknown":         {"third", token, "third: there is no such workspace, or you may not enter it"},
		"of another":      {"hello", "token-of-eve", "hello: there is no such workspace, or you may not enter it"},
		"stopped":         {"second", token, "is not running: start it with lockstep ws start second"},
		"does not answer": {"hello", token, "the workspace hello does not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			client, err := f.dial(c.workspace, ssh.Password(c.token))
			require.NoError(t, err)
			session, err := client.NewSession()
			require.NoError(t, err)
			output, err := session.CombinedOutput("true")
			var exit *ssh.ExitError
			require.ErrorAs(t, err, &exit)
			require.Equal(t, 255, exit.ExitStatus())
			require.Contains(t, string(output), c.want)
			_, err = client.Dial("tcp", "127.0.0.1:80")
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestConnectionEndsWithTheRight(t *testing.T) {
	for name, change := range map[string]func(*fixture){
		"stopped": func(f *fixture) {
			f.table.Set(access.Entry{ID: "id-of-hello", Name: "hello", OwnerID: ada})
		},
		"of another": func(f *fixture) {
			f.table.Set(access.Entry{ID: "id-of-hello", Name: "hello", OwnerID: eve, Running: true})
		},
		"blocked": func(f *fixture) { f.table.SetBlocked(ada, true) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			client, err := f.dial("hello", ssh.PublicKeys(f.adasKey))
			require.NoError(t, err)
			session, err := client.NewSession()
			require.NoError(t, err)
			stdout, err := session.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, session.Start("echo ready; sleep 600"))
			_, err = io.ReadFull(stdout, make([]byte, len("ready\n")))
			require.NoError(t, err)
			began := time.Now()
			change(f)
			require.Error(t, client.Wait())
			require.Less(t, time.Since(began), time.Second)
		})
	}
}

func TestGuestOfAPortGetsNoShell(t *testing.T) {
	f := newFixture(t, nil)
	f.table.Set(access.Entry{
		ID: "id-of-hello", Name: "hello", OwnerID: ada, Running: true, Shares: []access.Share{{UserID: eve, Port: 3000}},
	})
	client, err := f.dial("hello", ssh.Password("token-of-eve"))
	require.NoError(t, err)
	session, err := client.NewSession()
	require.NoError(t, err)
	output, err := session.CombinedOutput("id")
	require.Error(t, err)
	require.Contains(t, string(output), "you may not enter it")
}

func TestJumpNeedsTheRightToTheOtherWorkspace(t *testing.T) {
	f := newFixture(t, nil)
	f.table.Set(access.Entry{ID: "id-of-second", Name: "second", OwnerID: eve, Running: true})
	run := f.openSSH()
	output, err := run("ssh", "-J", "hello@gateway", "second", "id")
	require.Error(t, err)
	require.Contains(t, output, "second: there is no such workspace, or you may not enter it")
}

func TestFailedAttemptsOfAnAddressAreLimited(t *testing.T) {
	f := newFixture(t, func(l *Limits) { l.Rate, l.Burst = 0.0001, 3 })
	for range 3 {
		_, err := f.dial("hello", ssh.Password("wrong"))
		require.ErrorContains(t, err, "unable to authenticate")
	}
	_, err := f.dial("hello", ssh.Password(token))
	require.Error(t, err, "even the right one, for a while")
}

func TestConnectionsAndHandshakesAreLimited(t *testing.T) {
	f := newFixture(t, func(l *Limits) { l.Connections, l.Handshake = 2, 200*time.Millisecond })
	var held []net.Conn
	for range 2 {
		conn, err := net.Dial("tcp", f.address)
		require.NoError(t, err)
		_, err = conn.Read(make([]byte, 1)) // it greets
		require.NoError(t, err)
		held = append(held, conn)
	}
	conn, err := net.Dial("tcp", f.address)
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err, "one more is closed")
	for _, conn := range held { // those that do not authenticate are closed
		require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
		_, err := io.Copy(io.Discard, conn)
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	}
}

func TestChannelsAreLimited(t *testing.T) {
	f := newFixture(t, func(l *Limits) { l.Channels = 3 })
	client, err := f.dial("hello", ssh.PublicKeys(f.adasKey))
	require.NoError(t, err)
	for range 3 {
		session, err := client.NewSession()
		require.NoError(t, err)
		defer session.Close()
	}
	_, err = client.NewSession()
	require.ErrorContains(t, err, "too many open sessions")
}
