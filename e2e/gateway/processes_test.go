package gateway_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/gateway"
)

// askOften makes gateways ask for programs each 2 s.
func askOften(_ string, config any) {
	if c, ok := config.(*gateway.Config); ok {
		c.Workspaces.ProcessInterval = 2 * time.Second
	}
}

// TestProgramThatWasLeftKeepsTheWorkspaceAlive has a policy that warns after 20 s without activity.
func TestProgramThatWasLeftKeepsTheWorkspaceAlive(t *testing.T) {
	s := shared.Parallel(t)
	owner := newPerson(t, s, "builder")
	s.CLI().OK("agent", "configure", s.Agents()[0].Name, "--expiry-warning", "100s")
	owner.cli.OK("ws", "create", "builds", "--wait")
	owner.writeConfig("builds")
	file := filepath.Join(t.TempDir(), "pid")
	owner.awaitSSH("builds", "nohup sh -c 'while :; do :; done' > /dev/null 2>&1 & echo $! > "+file+"; echo left",
		"left\n")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	program, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = syscall.Kill(program, syscall.SIGKILL) })

	owner.cli.OK("ws", "update", "builds", "--stop-after-idle", "2m", "--idle-counts-processes")
	worksAfter := func(since time.Time) (last time.Time) {
		t.Helper()
		require.Eventually(t, func() bool {
			output := owner.cli.OK("ws", "get", "builds", "-o", "json")
			w := fixture.ParseOutput(t, output, &statev1.GetWorkspaceResponse{}).GetWorkspace()
			last = w.GetLastActivityAt().AsTime()
			return last.After(since) && strings.HasPrefix(w.GetKeptAliveBecause(), "the program sh was working at ")
		}, fixture.Timeout, fixture.PollInterval)
		return last
	}
	worksAfter(worksAfter(time.Time{}).Add(25 * time.Second))
	const warning = "workspace.expiry_warning"
	require.NotContains(t, owner.cli.OK("ws", "events", "builds"), warning)
	require.NoError(t, syscall.Kill(program, syscall.SIGKILL))
	require.Eventually(t, func() bool {
		return strings.Contains(owner.cli.OK("ws", "events", "builds"), warning)
	}, fixture.Timeout, fixture.PollInterval)
}
