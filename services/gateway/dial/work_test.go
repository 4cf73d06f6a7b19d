package dial_test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"lockstep.internal/libs/workspaceagent"
	"lockstep.internal/services/gateway/sshfront"
)

// TestAgentReportsProgramsOfSessions leaves a busy program behind.
func TestAgentReportsProgramsOfSessions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ask := func() workspaceagent.WorkReport {
		report, err := f.dialer.Work(t.Context(), f.entry())
		require.NoError(t, err)
		return report
	}
	image := exec.CommandContext(t.Context(), "/bin/sh", "-c", "while :; do :; done")
	image.Env = []string{"PATH=" + os.Getenv("PATH")}
	require.NoError(t, image.Start())
	t.Cleanup(func() {
		_ = image.Process.Kill()
		_ = image.Wait()
	})
	require.Nil(t, ask().WorkedMSAgo)

	c, err := f.dialer.Connect(t.Context(), f.entry(), sshfront.Person{ID: 1, Login: "ada"})
	require.NoError(t, err)
	client := ssh.NewClient(c.Conn, c.Channels, c.Requests)
	session, err := client.NewSession()
	require.NoError(t, err)
	output, err := session.Output("sleep 1000 > /dev/null 2>&1 & echo $!")
	require.NoError(t, err)
	waiting := processID(t, string(output))
	require.Nil(t, ask().WorkedMSAgo, "sleep is no work")

	session, err = client.NewSession()
	require.NoError(t, err)
	output, err = session.Output("nohup sh -c 'while :; do :; done' > /dev/null 2>&1 & echo $!")
	require.NoError(t, err)
	busy := processID(t, string(output))
	require.NoError(t, client.Close())
	_ = client.Wait()
	t.Cleanup(func() {
		_ = syscall.Kill(waiting, syscall.SIGKILL)
		_ = syscall.Kill(busy, syscall.SIGKILL)
	})
	var report workspaceagent.WorkReport
	require.Eventually(t, func() bool {
		report = ask()
		return report.WorkedMSAgo != nil
	}, time.Minute, 10*time.Millisecond)
	require.Equal(t, "sh", report.Programs[0].Name)
}

func TestQuestionForProgramsEndsWithItsContext(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	f.agent = silent.Addr().String()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = f.dialer.Work(ctx, f.entry())
	require.ErrorContains(t, err, "connect to the agent of workspace hello")
}

// processID parses the output of a session.
func processID(t *testing.T, line string) int {
	t.Helper()
	id, err := strconv.Atoi(strings.TrimSpace(line))
	require.NoError(t, err)
	return id
}
