package agent_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"lockstep.internal/libs/service"
	"lockstep.internal/services/relay/agent"
	"lockstep.internal/tools/testkit/lab"
)

// asProgram is a variable of the environment with which the tests' program is the relay agent instead.
const asProgram = "RELAY_AGENT_PROGRAM"

// kubeconfig of the lab, which all tests share.
var kubeconfig string

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		service.Main(agent.Program(), agent.DefaultConfig(), agent.Main)
		return
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	l, err := lab.Start(ctx, lab.Options{Name: "relay-agent", Progress: os.Stderr})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	kubeconfig = l.Kubeconfig()
	status := m.Run()
	if err := l.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	if err := goleak.Find(); err != nil && status == 0 {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	return status
}

// program runs an agent as a process of its own, until the test is over.
func program(t *testing.T, cfg agent.Config) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	child := exec.Command(self)
	child.Env = append(os.Environ(), asProgram+"=1", "LOCKSTEP_OPS_LISTEN=127.0.0.1:0", "LOCKSTEP_CREDENTIALS_FILE="+cfg.CredentialsFile,
		"LOCKSTEP_RELAY_URLS="+strings.Join(cfg.Relay.URLs, ","), "LOCKSTEP_KUBERNETES_ENABLED="+strconv.FormatBool(cfg.Kubernetes.Enabled),
		"LOCKSTEP_TARGETS_ALLOWED_ADDRESSES="+strings.Join(cfg.Targets.AllowedAddresses, ","))
	child.Stderr = t.Output()
	require.NoError(t, child.Start())
	t.Cleanup(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	})
	return child
}
