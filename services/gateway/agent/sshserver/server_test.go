package sshserver

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pkg/sftp"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"lockstep.internal/services/gateway/agent/listening"
)

func TestOnlyCertificatesForThisWorkspaceOpenConnections(t *testing.T) {
	f := newFixture(t)
	for name, change := range map[string]func(*ssh.Certificate){
		"another workspace":     func(c *ssh.Certificate) { c.ValidPrincipals = []string{"other"} },
		"expired":               func(c *ssh.Certificate) { c.ValidBefore = uint64(time.Now().Add(-time.Second).Unix()) },
		"not valid yet":         func(c *ssh.Certificate) { c.ValidAfter = uint64(time.Now().Add(time.Minute).Unix()) },
		"a host certificate":    func(c *ssh.Certificate) { c.CertType = ssh.HostCert },
		"an unknown constraint": func(c *ssh.Certificate) { c.CriticalOptions = map[string]string{"force-command": "x"} },
	} {
		t.Run(name, func(t *testing.T) {
			_, err := f.dial(change)
			require.ErrorContains(t, err, "unable to authenticate")
		})
	}
	key := newKey(t)
	t.Run("a key without a certificate", func(t *testing.T) {
		_, err := f.dialAs(workspace, key)
		require.ErrorContains(t, err, "unable to authenticate")
	})
	t.Run("another user", func(t *testing.T) {
		signer, err := ssh.NewCertSigner(f.certificate(key.PublicKey(), nil), key)
		require.NoError(t, err)
		_, err = f.dialAs("root", signer)
		require.ErrorContains(t, err, "unable to authenticate")
	})
	t.Run("another authority", func(t *testing.T) {
		other := &fixture{T: t, authority: newKey(t)}
		signer, err := ssh.NewCertSigner(other.certificate(key.PublicKey(), nil), key)
		require.NoError(t, err)
		_, err = f.dialAs(workspace, signer)
		require.ErrorContains(t, err, "unable to authenticate")
	})
	f.client()
}

func TestCommandHasOutputErrorsAndStatus(t *testing.T) {
	f := newFixture(t)
	session := f.session(f.client())
	var stdout, stderr bytes.Buffer
	session.Stdin, session.Stdout, session.Stderr = strings.NewReader("typed"), &stdout, &stderr
	err := session.Run("cat; pwd; echo $IN_WORKSPACE; echo problem >&2; exit 7")
	var exit *ssh.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 7, exit.ExitStatus())
	require.Equal(t, "typed"+f.home+"\nyes\n", stdout.String())
	require.Equal(t, "problem\n", stderr.String())
}

func TestSignalEndsCommand(t *testing.T) {
	f := newFixture(t)
	session := f.session(f.client())
	stdout, err := session.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, session.Start("echo ready; exec sleep 600"))
	_, err = io.ReadFull(stdout, make([]byte, len("ready\n")))
	require.NoError(t, err)
	require.NoError(t, session.Signal(ssh.SIGTERM))
	var exit *ssh.ExitError
	require.ErrorAs(t, session.Wait(), &exit)
	require.Equal(t, "TERM", exit.Signal())
}

func TestLargeOutputArrivesWhole(t *testing.T) {
	f := newFixture(t)
	session := f.session(f.client())
	output, err := session.Output("head -c 5000000 /dev/zero")
	require.NoError(t, err)
	require.Len(t, output, 5_000_000)
}

func TestTerminalHasTypeAndSizeAndKeepsBytes(t *testing.T) {
	f := newFixture(t)
	session := f.session(f.client())
	require.NoError(t, session.Setenv("LC_ALL", "C.UTF-8"))
	require.Error(t, session.Setenv("LD_PRELOAD", "/tmp/x.so"))
	require.NoError(t, session.RequestPty("xterm-256color", 40, 100, ssh.TerminalModes{}))
	// With "raw", the terminal does not change line ends: the server must not, either.
	output, err := session.Output("stty raw; stty size; echo $TERM $LC_ALL; tty | cut -c1-8")
	require.NoError(t, err)
	require.Equal(t, "40 100\nxterm-256color C.UTF-8\n/dev/pts\n", string(output))
}

func TestTerminalIsResized(t *testing.T) {
	f := newFixture(t)
	session := f.session(f.client())
	require.NoError(t, session.RequestPty("xterm", 24, 80, ssh.TerminalModes{}))
	stdin, err := session.StdinPipe()
	require.NoError(t, err)
	stdout, err := session.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, session.Start("stty raw -echo; trap 'stty size; exit' WINCH; echo ready; while :; do read -r x; done"))
	_, err = io.ReadFull(stdout, make([]byte, len("ready\n")))
	require.NoError(t, err)
	require.NoError(t, session.WindowChange(50, 120))
	_, err = stdin.Write([]byte("\n"))
	require.NoError(t, err)
	rest, err := io.ReadAll(stdout)
	require.NoError(t, err)
	require.Contains(t, string(rest), "50 120")
}

func TestShellIsLoginShellInHome(t *testing.T) {
	f := newFixture(t)
	require.NoError(t, os.WriteFile(filepath.Join(f.home, ".profile"), []byte("export FROM_PROFILE=read\n"), 0o600))
	t.Setenv("SHELL", "/bin/sh")
	session := f.session(f.client())
	var stdout bytes.Buffer
	session.Stdout = &stdout
	session.Stdin = strings.NewReader("echo $FROM_PROFILE; pwd; exit 3\n")
	require.NoError(t, session.Shell())
	var exit *ssh.ExitError
	require.ErrorAs(t, session.Wait(), &exit)
	require.Equal(t, 3, exit.ExitStatus())
	require.Equal(t, "read\n"+f.home+"\n", stdout.String())
}

func TestWhatASessionRunsEndsWithItsConnection(t *testing.T) {
	// A shell cannot trap a signal that is ignored when it starts, as under nohup. Who handles a signal passes it on as
	// not ignored.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(hangups) })
	for name, prepare := range map[string]func(*ssh.Session) error{
		"without a terminal": func(*ssh.Session) error { return nil },
		"with a terminal":    func(s *ssh.Session) error { return s.RequestPty("xterm", 24, 80, ssh.TerminalModes{}) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			client := f.client()
			session := f.session(client)
			require.NoError(t, prepare(session))
			ended := filepath.Join(f.home, "ended")
			stdout, err := session.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, session.Start("trap 'echo hup > "+ended+"; exit' HUP; echo ready; while :; do sleep 0.1; done"))
			_, err = io.ReadFull(stdout, make([]byte, len("ready")))
			require.NoError(t, err)
			require.NoError(t, client.Close())
			require.Eventually(t, func() bool {
				content, err := os.ReadFile(ended)
				return err == nil && string(content) == "hup\n"
			}, 10*time.Second, 10*time.Millisecond)
		})
	}
}

func TestFilesAreServed(t *testing.T) {
	f := newFixture(t)
	client, err := sftp.NewClient(f.client())
	require.NoError(t, err)
	defer client.Close()
	file, err := client.Create("notes.txt") // relative to the home folder
	require.NoError(t, err)
	_, err = file.Write([]byte("by sftp"))
	require.NoError(t, err)
	require.NoError(t, file.Close())
	content, err := os.ReadFile(filepath.Join(f.home, "notes.txt"))
	require.NoError(t, err)
	require.Equal(t, "by sftp", string(content))
}

func TestOpenPortsAreListed(t *testing.T) {
	f := newFixture(t)
	session := f.session(f.client())
	stdout, err := session.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, session.RequestSubsystem(SubsystemPorts))
	var ports []listening.Port
	require.NoError(t, json.NewDecoder(stdout).Decode(&ports))
	_, port, err := net.SplitHostPort(f.address)
	require.NoError(t, err)
	number, err := strconv.Atoi(port)
	require.NoError(t, err)
	require.Contains(t, ports, listening.Port{Number: number, Loopback: true})
}

func TestUnknownSubsystemIsRefused(t *testing.T) {
	f := newFixture(t)
	require.Error(t, f.session(f.client()).RequestSubsystem("netconf"))
}

// echo is a server that returns what it gets.
func echo(t *testing.T) net.Listener {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}
	}()
	return listener
}

func requireEcho(t *testing.T, conn net.Conn) {
	_, err := conn.Write([]byte("there and back"))
	require.NoError(t, err)
	half, ok := conn.(interface{ CloseWrite() error })
	require.True(t, ok)
	require.NoError(t, half.CloseWrite())
	answer, err := io.ReadAll(conn) // the end of one direction ends the other
	require.NoError(t, err)
	require.Equal(t, "there and back", string(answer))
}

func TestPortOfTheWorkspaceIsForwarded(t *testing.T) {
	f := newFixture(t)
	client := f.client()
	conn, err := client.Dial("tcp", echo(t).Addr().String())
	require.NoError(t, err)
	requireEcho(t, conn)
	_, err = client.Dial("tcp", "127.0.0.1:1")
	var refused *ssh.OpenChannelError
	require.ErrorAs(t, err, &refused)
	require.Contains(t, refused.Message, "connection refused")
}

func TestPortIsForwardedToTheClient(t *testing.T) {
	f := newFixture(t)
	client := f.client()
	listener, err := client.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		_, _ = io.Copy(conn, conn)
		_ = conn.Close()
	}()
	conn, err := net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	requireEcho(t, conn)
	require.NoError(t, listener.Close())
	_, err = net.Dial("tcp", listener.Addr().String())
	require.Error(t, err)
}

func TestAgentOfTheClientIsForwarded(t *testing.T) {
	f := newFixture(t)
	client := f.client()
	require.NoError(t, agent.ForwardToAgent(client, agent.NewKeyring()))
	session := f.session(client)
	require.NoError(t, agent.RequestAgentForwarding(session))
	output, err := session.CombinedOutput("ssh-add -l")
	var exit *ssh.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, "The agent has no identities.\n", string(output))
}

func TestCertificateSaysWhatIsAllowed(t *testing.T) {
	f := newFixture(t)
	client, err := f.dial(func(c *ssh.Certificate) { c.Extensions = nil })
	require.NoError(t, err)
	_, err = client.Dial("tcp", echo(t).Addr().String())
	require.ErrorContains(t, err, "forwarding of ports is not allowed")
	_, err = client.Listen("tcp", "127.0.0.1:0")
	require.Error(t, err)
	session := f.session(client)
	require.Error(t, session.RequestPty("xterm", 24, 80, ssh.TerminalModes{}))
	require.Error(t, agent.RequestAgentForwarding(session))
	output, err := session.Output("echo commands are always allowed")
	require.NoError(t, err)
	require.Equal(t, "commands are always allowed\n", string(output))
}

func TestChannelsOfAConnectionAreLimited(t *testing.T) {
	f := newFixture(t)
	client := f.client()
	for range maxChannels {
		f.session(client)
	}
	_, err := client.NewSession()
	var refused *ssh.OpenChannelError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, ssh.ResourceShortage, refused.Reason)
}

func TestConnectionsAreLimitedBeforeTheyAuthenticate(t *testing.T) {
	f := newFixture(t)
	var held []net.Conn
	for range maxConnections {
		conn, err := net.Dial("tcp", f.address)
		require.NoError(t, err)
		_, err = conn.Read(make([]byte, 1)) // the server has taken it: it greets
		require.NoError(t, err)
		held = append(held, conn)
	}
	conn, err := net.Dial("tcp", f.address)
	require.NoError(t, err)
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err, "one more is closed")
	for _, conn := range held {
		require.NoError(t, conn.Close())
	}
	require.Eventually(t, func() bool {
		client, err := f.dial(nil)
		return err == nil && client.Close() == nil
	}, 10*time.Second, 10*time.Millisecond)
}

func TestHostKeyIsKept(t *testing.T) {
	folder := filepath.Join(t.TempDir(), ".lockstep")
	first, err := HostKey(folder)
	require.NoError(t, err)
	second, err := HostKey(folder)
	require.NoError(t, err)
	require.Equal(t, first.PublicKey().Marshal(), second.PublicKey().Marshal())
	info, err := os.Stat(filepath.Join(folder, hostKeyFile))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.NoError(t, os.WriteFile(filepath.Join(folder, hostKeyFile), []byte("damaged"), 0o600))
	_, err = HostKey(folder)
	require.ErrorContains(t, err, hostKeyFile, "a damaged key is not replaced: clients would not notice an attack")
}

func TestAccountsOfTheImageAreRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "passwd")
	const accounts = "root:x:0:0::/root:/bin/bash\nshort:1000\ndev:x:1000:1000::/:/bin/zsh\n"
	require.NoError(t, os.WriteFile(file, []byte(accounts), 0o600))
	require.Equal(t, account{name: "dev", shell: "/bin/zsh"}, readAccount(file, 1000))
	require.Zero(t, readAccount(file, 1001))
	require.Zero(t, readAccount(file+"-missing", 0), "an image without the file")
	require.True(t, noLogin("/usr/sbin/nologin"))
}

// TestLoginShellKeepsThePathOfTheContainer shows it with the shells of this machine. The profile is that of
// distributions, which sets PATH anew.
func TestLoginShellKeepsThePathOfTheContainer(t *testing.T) {
	home := t.TempDir()
	profile := "PATH=/usr/bin:/bin\nexport PATH; MARK=read; export MARK\n"
	require.NoError(t, os.WriteFile(filepath.Join(home, ".profile"), []byte(profile), 0o600))
	path := "/opt/language/bin:" + os.Getenv("PATH")
	var shown []string
	for _, name := range []string{"sh", "bash", "dash"} {
		shell, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		command := exec.CommandContext(t.Context(), shell)
		command.Args = loginShell(shell, path)
		command.Env = []string{"HOME=" + home, "PATH=" + path}
		command.Stdin = strings.NewReader("echo $MARK $PATH\n")
		output, err := command.CombinedOutput()
		require.NoError(t, err, "%s: %s", shell, output)
		require.Equal(t, "read "+path+":/usr/bin:/bin\n", string(output), shell)
		shown = append(shown, name)
	}
	require.NotEmpty(t, shown)
	require.Equal(t, []string{"-fish"}, loginShell("/usr/bin/fish", path), "another language")
}

func TestSocketsOfKilledServersAreRemoved(t *testing.T) {
	folder := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(folder, agentFolder+"123"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(folder, agentFolder+"123", "socket"), nil, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(folder, hostKeyFile), nil, 0o600))
	require.NoError(t, RemoveSockets(folder))
	left, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Len(t, left, 1)
	require.Equal(t, hostKeyFile, left[0].Name())
}
