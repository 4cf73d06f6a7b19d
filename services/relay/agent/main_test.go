package agent_test

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/service"
	"lockstep.internal/services/relay/agent"
	"lockstep.internal/tools/testkit/labtest"
)

// agentProcessVariable makes the test binary run the relay agent.
const agentProcessVariable = "RELAY_AGENT_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(agentProcessVariable) != "" {
		service.Main(agent.Program(), agent.DefaultConfig(), agent.Main)
		return
	}
	labtest.Main(m)
}

// startProcess runs an agent in a process of its own, until the test ends.
func startProcess(t *testing.T, cfg agent.Config) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	child := exec.Command(self)
	child.Env = append(os.Environ(), agentProcessVariable+"=1", "LOCKSTEP_OPS_LISTEN=127.0.0.1:0",
		"LOCKSTEP_CREDENTIALS_FILE="+cfg.CredentialsFile,
		"LOCKSTEP_RELAY_URLS="+strings.Join(cfg.Relay.URLs, ","),
		"LOCKSTEP_KUBERNETES_ENABLED="+strconv.FormatBool(cfg.Kubernetes.Enabled),
		"LOCKSTEP_TARGETS_ALLOWED_ADDRESSES="+strings.Join(cfg.Targets.AllowedAddresses, ","))
	child.Stderr = t.Output()
	require.NoError(t, child.Start())
	t.Cleanup(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	})
	return child
}
