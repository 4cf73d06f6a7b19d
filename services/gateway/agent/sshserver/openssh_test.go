package sshserver

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOpenSSHIsServed uses the programs that people use.
func TestOpenSSHIsServed(t *testing.T) {
	f := newFixture(t)
	identity, knownHosts := f.keyFiles()
	host, port, err := net.SplitHostPort(f.address)
	require.NoError(t, err)
	options := []string{
		"-F", "none", "-i", identity, "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", "-o", "User=" + workspace,
		"-o", "StrictHostKeyChecking=yes", "-o", "UserKnownHostsFile=" + knownHosts, "-o", "Port=" + port,
	}
	run := func(program string, arguments ...string) string {
		command := exec.CommandContext(t.Context(), program, append(append([]string{}, options...), arguments...)...)
		output, err := command.CombinedOutput()
		require.NoError(t, err, "%s: %s", program, output)
		return string(output)
	}
	require.Equal(t, f.home+"\n", run("ssh", host, "pwd"))
	require.Equal(t, "24 80\r\n", run("ssh", "-tt", host, "stty rows 24 cols 80; stty size")[:len("24 80\r\n")])

	local := filepath.Join(t.TempDir(), "large")
	content := strings.Repeat("0123456789abcdef", 1<<16)
	require.NoError(t, os.WriteFile(local, []byte(content), 0o600))
	run("scp", "-q", local, host+":copied")
	copied, err := os.ReadFile(filepath.Join(f.home, "copied"))
	require.NoError(t, err)
	require.Equal(t, content, string(copied))
	run("scp", "-q", host+":copied", local+"-back")
	back, err := os.ReadFile(local + "-back")
	require.NoError(t, err)
	require.Equal(t, content, string(back))

	echo := echo(t)
	forward := append(append([]string{}, options...), "-W", echo.Addr().String(), host)
	command := exec.CommandContext(t.Context(), "ssh", forward...)
	command.Stdin = strings.NewReader("through -W")
	output, err := command.Output()
	require.NoError(t, err)
	require.Equal(t, "through -W", string(output))
}
