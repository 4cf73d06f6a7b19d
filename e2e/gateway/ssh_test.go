package gateway_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
)

// runSSH runs a command in a workspace that must succeed, and returns its output.
func (p *person) runSSH(host, command string) string {
	p.t.Helper()
	output, err := p.openSSH("ssh", host, command)
	require.NoError(p.t, err, "%s: %s", command, output)
	return output
}

// sftp runs commands of OpenSSH's sftp. The first one that fails ends it.
func (p *person) sftp(host string, commands ...string) (string, error) {
	p.t.Helper()
	return p.openSSHWith(strings.NewReader(strings.Join(commands, "\n")+"\n"), "sftp", "-q", "-b", "-", host)
}

func TestFilesAreTransferredBySFTP(t *testing.T) {
	s := shared.Parallel(t)
	owner := newPerson(t, s, "ruth")
	owner.create("files")
	owner.writeConfig("files")
	owner.awaitSSH("files", "true", "")
	content := random(t, 300_000)
	folder := t.TempDir()
	local, back := filepath.Join(folder, "file"), filepath.Join(folder, "back")
	require.NoError(t, os.WriteFile(local, content, 0o600))

	output, err := owner.sftp("files.lockstep", "mkdir sub", "put "+local+" sub/put", "rename sub/put sub/renamed",
		"ls -1 sub", "get sub/renamed "+back, "pwd")
	require.NoError(t, err, output)
	require.Contains(t, output, "\nsub/renamed")
	require.NotContains(t, output, "\nsub/put")
	read, err := os.ReadFile(back)
	require.NoError(t, err)
	require.True(t, bytes.Equal(content, read))
	require.Equal(t, "renamed\n", owner.runSSH("files.lockstep", "ls sub"))
	output, err = owner.sftp("files.lockstep", "get missing "+back)
	require.Error(t, err)
	require.Contains(t, output, "not found")
}

func random(t *testing.T, size int) []byte {
	t.Helper()
	content := make([]byte, size)
	_, err := rand.Read(content)
	require.NoError(t, err)
	return content
}

// TestLargeStreamsArriveWhole sends 8 MB to a program and back. The program ends with its input.
func TestLargeStreamsArriveWhole(t *testing.T) {
	s := shared.Parallel(t)
	owner := newPerson(t, s, "mary")
	owner.create("streams")
	owner.writeConfig("streams")
	owner.awaitSSH("streams", "true", "")
	content := random(t, 8<<20)
	sum := sha256.Sum256(content)

	ctx, cancel := context.WithTimeout(t.Context(), fixture.Timeout)
	defer cancel()
	cat := owner.command(ctx, "ssh", "streams.lockstep", "cat")
	cat.Stdin = bytes.NewReader(content)
	echoed, err := cat.Output()
	require.NoError(t, err)
	require.Len(t, echoed, len(content))
	require.Equal(t, sum, sha256.Sum256(echoed))

	// What the program has written before it ends arrives, and then its status.
	last := owner.command(ctx, "ssh", "streams.lockstep", "cat > stored; cat stored; echo problem >&2; exit 9")
	var problem bytes.Buffer
	last.Stdin, last.Stderr = bytes.NewReader(content), &problem
	echoed, err = last.Output()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 9, exit.ExitCode())
	require.Equal(t, "problem\n", problem.String())
	require.Equal(t, sum, sha256.Sum256(echoed))
}

// TestJumpReachesWorkspacesOfThePerson uses one workspace, a name that is none, and the gateway of a configuration of
// `ws ssh-config` as jump hosts.
func TestJumpReachesWorkspacesOfThePerson(t *testing.T) {
	s := shared.Parallel(t)
	owner, other := newPerson(t, s, "vera"), newPerson(t, s, "wilma")
	owner.create("near")
	owner.create("far")
	other.create("foreign")
	owner.writeConfig("near")
	owner.awaitSSH("near", "true", "")
	owner.runSSH("near.lockstep", "echo near > place")

	// The second connection has no section of the configuration: only the key, and the host key of the gateway.
	config, err := os.ReadFile(owner.config)
	require.NoError(t, err)
	section := "Host far foreign\n  Port 22\n"
	for line := range strings.Lines(string(config)) {
		if word := strings.Fields(line)[0]; word != "Host" && word != "User" && word != "HostName" && word != "Port" {
			section += line
		}
	}
	require.NoError(t, os.WriteFile(owner.config, append(config, section...), 0o600))
	output, err := owner.openSSH("ssh", "-J", "near.lockstep", "far", "echo far > place; cat place")
	require.NoError(t, err, output)
	require.Equal(t, "far\n", output)
	require.Equal(t, "near\n", owner.runSSH("near.lockstep", "cat place"))
	output, err = owner.openSSH("ssh", "-J", "nobody@near.lockstep", "far", "cat place")
	require.NoError(t, err, output)
	require.Equal(t, "far\n", output, "the gateway answers, not a workspace")
	output, err = owner.openSSH("ssh", "-J", "near.lockstep", "foreign", "cat place")
	require.Error(t, err)
	require.Contains(t, output, "you may not enter it")
}

// TestSessionsShareAConnection opens several sessions over one connection (ControlMaster).
func TestSessionsShareAConnection(t *testing.T) {
	s := shared.Parallel(t)
	owner := newPerson(t, s, "hedy")
	owner.create("multiplexed")
	owner.writeConfig("multiplexed")
	owner.awaitSSH("multiplexed", "true", "")
	const host = "multiplexed.lockstep"
	socket := "ControlPath=" + filepath.Join(t.TempDir(), "s")
	output, err := owner.openSSH("ssh", "-f", "-N", "-M", "-o", socket, host)
	require.NoError(t, err, output)
	defer func() {
		output, err := owner.openSSH("ssh", "-o", socket, "-O", "exit", host)
		require.NoError(t, err, output)
	}()
	first := fixture.StartProcess(t, owner.command(t.Context(), "ssh", "-o", socket, host,
		"echo $SSH_CONNECTION; until [ -e go ]; do sleep 0.1; done; exit 4"))
	connection := first.AwaitLine(" ")
	second, err := owner.openSSH("ssh", "-o", socket, host, "echo $SSH_CONNECTION; exit 5")
	requireStatus(t, 5, err)
	require.Equal(t, connection+"\n", second, "the agent sees one connection")
	output, err = owner.openSSH("ssh", "-o", socket, host, "touch go")
	require.NoError(t, err, output)
	requireStatus(t, 4, first.Wait())
}

func requireStatus(t *testing.T, status int, err error) {
	t.Helper()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, status, exit.ExitCode())
}

// promisedEnd is how soon a connection ends when the right to it does, on a machine that is not loaded.
const promisedEnd = time.Second

// TestSessionEndsWithTheRight measures the time from each command to the end of a session that it ends.
func TestSessionEndsWithTheRight(t *testing.T) {
	s := shared.Parallel(t)
	owner, guest := newPerson(t, s, "olga"), newPerson(t, s, "gina")
	owner.create("ending")
	owner.writeConfig("ending")
	owner.awaitSSH("ending", "true", "")
	guest.create("elsewhere")
	guest.writeConfig("elsewhere")
	guest.awaitSSH("elsewhere", "true", "")
	enter := func(p *person, host string) *fixture.Process {
		command := p.command(t.Context(), "ssh", "-l", "ending", host, "echo working; cat")
		_, err := command.StdinPipe() // it stays open until the end
		require.NoError(t, err)
		session := fixture.StartProcess(t, command)
		session.AwaitLine("working")
		return session
	}
	ends := func(reason string, session *fixture.Process, command ...string) {
		t.Helper()
		ended := make(chan time.Time, 1)
		go func() {
			for range session.Lines {
				continue
			}
			ended <- time.Now()
		}()
		owner.cli.OK(command...)
		answered := time.Now()
		select {
		case at := <-ended:
			t.Logf("%s: the session ended %v after the command; on a machine without load %v is promised", reason,
				max(0, at.Sub(answered)).Round(time.Millisecond), promisedEnd)
		case <-time.After(fixture.Timeout):
			require.FailNow(t, "the session has not ended", reason)
		}
	}

	owner.cli.OK("ws", "share", "ending", "--with", guest.name)
	require.Eventually(t, func() bool {
		_, err := guest.openSSH("ssh", "-l", "ending", "elsewhere.lockstep", "true")
		return err == nil
	}, fixture.Timeout, fixture.PollInterval)
	kept := enter(owner, "ending.lockstep")
	ends("no longer shared", enter(guest, "elsewhere.lockstep"), "ws", "unshare", "ending", "--with", guest.name)
	ends("stopped", kept, "ws", "stop", "ending")
	owner.cli.OK("ws", "start", "ending", "--wait")
	owner.awaitSSH("ending", "true", "")
	session := enter(owner, "ending.lockstep")
	ends("key removed", session, "ssh-key", "remove", owner.name)
	output, err := owner.openSSH("ssh", "ending.lockstep", "true")
	require.Error(t, err)
	require.Contains(t, output, "Permission denied")
}
