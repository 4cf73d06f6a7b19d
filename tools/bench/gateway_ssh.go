package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"lockstep.internal/libs/workspaceagent"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/gateway/access"
	"lockstep.internal/services/gateway/agent/sshserver"
)

// workspaceConfig is that of the agent of the workspace.
type workspaceConfig struct{ Host, Folder, AuthorityFile string }

// startWorkspace starts the agent of the workspace and an HTTP server in it. It returns the server's address.
func (g *gatewayFixture) startWorkspace(ctx context.Context) string {
	folder := g.file("workspace")
	check(os.MkdirAll(folder, 0o700))
	host := gatewayWorkspace + "." + g.namespace + "." + gatewayDomain
	return g.startStandIn(ctx, standInWorkspace, workspaceConfig{host, folder, g.keys.AuthorityFile}).addresses[targetHTTP]
}

// runWorkspace serves the agent of the workspace at its port, and what the target serves at another.
func runWorkspace(ctx context.Context, c workspaceConfig, ready readyFunc) error {
	raw, err := os.ReadFile(c.AuthorityFile)
	if err != nil {
		return fmt.Errorf("read the authority: %w", err)
	}
	authority, err := ssh.ParsePrivateKey(raw)
	if err != nil {
		return fmt.Errorf("read the authority: %w", err)
	}
	hostKey, err := sshserver.HostKey(filepath.Join(c.Folder, "state"))
	if err != nil {
		return err
	}
	var listening net.ListenConfig
	web, err := listening.Listen(ctx, "tcp", net.JoinHostPort(c.Host, "0"))
	if err != nil {
		return fmt.Errorf("serve the workspace: %w", err)
	}
	defer web.Close()                                 //nolint:errcheck // the process ends
	go func() { _ = newHTTPServer(respond())(web) }() // it ends with its listener
	listener, err := listening.Listen(ctx, "tcp", net.JoinHostPort(c.Host, strconv.Itoa(workspaceagent.Port)))
	if err != nil {
		return fmt.Errorf("serve the workspace: %w", err)
	}
	ready(map[string]string{targetHTTP: web.Addr().String()})
	return sshserver.New(sshserver.Options{
		Workspace: gatewayWorkspaceID, HostKey: hostKey, Home: c.Folder, StateFolder: filepath.Join(c.Folder, "state"),
		Environ: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + c.Folder}, Logger: slog.New(slog.DiscardHandler),
		Authorities: func() ([]ssh.PublicKey, error) { return []ssh.PublicKey{authority.PublicKey()}, nil },
	}).Serve(ctx, listener)
}

// sshServer is a server that the person may use.
type sshServer struct {
	address, user string
	signer        ssh.Signer
	keyFile       string
}

func (s sshServer) connect(ctx context.Context) (*ssh.Client, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", s.address)
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the address
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	c, channels, requests, err := ssh.NewClientConn(conn, s.address, &ssh.ClientConfig{
		User: s.user, Auth: []ssh.AuthMethod{ssh.PublicKeys(s.signer)},
		HostKeyCallback: ssh.InsecureIgnoreHostKey(), //nolint:gosec // servers of the benchmark
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect to %s: %w", s.address, err), conn.Close())
	}
	return ssh.NewClient(c, channels, requests), nil
}

// command starts a command. Close ends it.
func (s sshServer) command(ctx context.Context, command string) (in io.Writer, out io.Reader, end func()) {
	client := must(s.connect(ctx))
	started := must(client.NewSession())
	in, out = must(started.StdinPipe()), must(started.StdoutPipe())
	check(started.Start(command))
	return in, out, func() { _ = client.Close() }
}

// megabytes returns how many million bytes a second arrive from a command.
func (s sshServer) megabytes(ctx context.Context, turn time.Duration) float64 {
	_, out, end := s.command(ctx, "cat /dev/zero")
	defer end()
	m := newMeter(turn)
	for buffer, goesOn := make([]byte, blockSize), true; goesOn; {
		n, err := out.Read(buffer)
		check(interrupted(ctx))
		check(err)
		now := time.Now()
		goesOn = m.add(n, now, now)
	}
	return m.rate() / 1e6
}

// roundtrip returns the median time until a command has echoed a byte.
func (s sshServer) roundtrip(ctx context.Context, turn time.Duration) float64 {
	in, out, end := s.command(ctx, "cat")
	defer end()
	m := newMeter(turn)
	for key, goesOn := []byte{'x'}, true; goesOn; {
		began := time.Now()
		must(in.Write(key))
		must(io.ReadFull(out, key))
		check(interrupted(ctx))
		goesOn = m.add(1, began, time.Now())
	}
	return median(m.latencies)
}

// shell returns the time until OpenSSH's client shows the first byte of a shell.
func (s sshServer) shell(ctx context.Context) float64 {
	host, port, err := net.SplitHostPort(s.address)
	check(err)
	cmd := exec.CommandContext(ctx, "ssh", "-F", "none", "-tt", "-i", s.keyFile, "-p", port, //nolint:gosec // see above
		"-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR",
		"-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", s.user+"@"+host)
	in, out := must(cmd.StdinPipe()), must(cmd.StdoutPipe())
	cmd.Stderr = os.Stderr
	began := time.Now()
	check(cmd.Start())
	_, err = io.ReadFull(out, make([]byte, 1))
	took := milliseconds(time.Since(began))
	_ = in.Close()         // the shell is not needed any more
	_ = cmd.Process.Kill() // see above
	_ = cmd.Wait()         // it was killed
	check(interrupted(ctx))
	check(err)
	return took
}

// measureSSH measures SSH through the gateway, beside OpenSSH's server on this machine.
func (g *gatewayFixture) measureSSH(ctx context.Context, size Size, measured Measured) {
	if !size.wants("ssh_mb_s", "ssh_roundtrip_ms", "shell_ms", "kb_per_idle_ssh") {
		return
	}
	ours := g.registerKey(ctx)
	theirs, found := g.startOpenSSH(ctx, ours)
	compare := func(name string, measure func(s sshServer) float64) {
		switch {
		case !size.wants(name):
		case found:
			measured[name] = takeTurns(ctx, size.For,
				func(int) float64 { return measure(ours) }, func(int) float64 { return measure(theirs) })
		default:
			measured[name] = Figure{Value: measure(ours), Note: "there is no sshd: install openssh-server"}
		}
	}
	compare("ssh_mb_s", func(s sshServer) float64 { return s.megabytes(ctx, turnOf(size)) })
	compare("ssh_roundtrip_ms", func(s sshServer) float64 { return s.roundtrip(ctx, turnOf(size)) })
	if _, err := exec.LookPath("ssh"); err == nil {
		compare("shell_ms", func(s sshServer) float64 { return s.shell(ctx) })
	} else {
		measured["shell_ms"] = Figure{Note: "there is no ssh in PATH"}
	}
	if size.wants("kb_per_idle_ssh") {
		measured["kb_per_idle_ssh"] = g.measureIdle(ctx, size.of(idleSessions), func() func() {
			in, out, end := ours.command(ctx, "cat")
			must(in.Write([]byte{'x'}))
			must(io.ReadFull(out, make([]byte, 1)))
			return end
		})
	}
}

// registerKey makes an SSH key of the person, and returns the gateway once it knows the key.
func (g *gatewayFixture) registerKey(ctx context.Context) sshServer {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	check(err)
	s := sshServer{
		address: g.direct.addresses["ssh"], user: gatewayWorkspace, signer: must(ssh.NewSignerFromKey(private)),
		keyFile: g.file("person"),
	}
	block := must(ssh.MarshalPrivateKey(private, ""))
	check(os.WriteFile(s.keyFile, pem.EncodeToMemory(block), 0o600))
	fingerprint := access.Fingerprint(s.signer.PublicKey())
	g.publish(ctx, benchCell.AccessSSHKey(fingerprint), events.AccessSSHKey{
		Fingerprint: fingerprint, UserID: gatewayPerson,
	})
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		client, err := s.connect(ctx)
		if err == nil {
			check(client.Close())
			return s
		}
		check(interrupted(ctx))
		<-poll.C
	}
}

// sshdConfig lets one person in with one key.
const sshdConfig = `
ListenAddress %[2]s
HostKey %[3]s
AuthorizedKeysFile %[1]s/authorized_keys
PidFile none
StrictModes no
PrintMotd no
UseDNS no
MaxStartups 100
`

// startOpenSSH starts OpenSSH's server for the user of this process. found is false without the program.
func (g *gatewayFixture) startOpenSSH(ctx context.Context, person sshServer) (_ sshServer, found bool) {
	program, err := exec.LookPath("sshd")
	if err != nil {
		program = "/usr/sbin/sshd" // it is not in the PATH of most users
	}
	if _, err := os.Stat(program); err != nil {
		return sshServer{}, false
	}
	if os.Getuid() == 0 {
		check(os.MkdirAll("/run/sshd", 0o755)) //nolint:gosec // where sshd demands an empty folder
	}
	folder := g.file("sshd")
	check(os.MkdirAll(folder, 0o700))
	keys := ssh.MarshalAuthorizedKey(person.signer.PublicKey())
	check(os.WriteFile(filepath.Join(folder, "authorized_keys"), keys, 0o600))
	listener := must(new(net.ListenConfig).Listen(ctx, "tcp", loopback))
	person.address, person.user = listener.Addr().String(), must(user.Current()).Username
	check(listener.Close())
	file := filepath.Join(folder, "config")
	check(os.WriteFile(file, fmt.Appendf(nil, sshdConfig, folder, person.address, g.keys.HostFile), 0o600))
	log := must(os.Create(filepath.Join(folder, "log")))
	cmd := exec.Command(program, "-D", "-e", "-f", file) //nolint:gosec,noctx // ended below; a program of this machine
	cmd.Stderr = log
	check(cmd.Start())
	g.onClose(func(context.Context) error {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = cmd.Wait()                          // by the signal
		return log.Close()
	})
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for range 1000 {
		client, err := person.connect(ctx)
		if err == nil {
			check(client.Close())
			return person, true
		}
		check(interrupted(ctx))
		<-poll.C
	}
	check(fmt.Errorf("sshd is not ready: %s", must(os.ReadFile(log.Name()))))
	return sshServer{}, false
}
