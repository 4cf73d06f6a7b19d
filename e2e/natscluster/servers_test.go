package natscluster_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsauth/natsadmin"
	"lockstep.internal/tools/stack"
	"lockstep.internal/tools/testkit/port"
)

// childVariable makes the test binary run a NATS server, in a process that can be killed.
const childVariable = "LOCKSTEP_TEST_NATS_SERVER"

func TestMain(m *testing.M) {
	if config := os.Getenv(childVariable); config != "" {
		child(config)
		return
	}
	os.Exit(fixture.Main(m, 1))
}

// childConfig is the configuration of a server in a child process. Three servers on one machine need ports and folders
// of their own.
type childConfig struct {
	File  string `json:"file"`
	Port  int    `json:"port"`
	Store string `json:"store"`
}

// child runs a server, prints a line when it accepts clients, and exits when stdin closes.
func child(config string) {
	var c childConfig
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		panic(err)
	}
	options, err := server.ProcessConfigFile(c.File)
	if err != nil {
		panic(err)
	}
	options.Host, options.Port, options.StoreDir = "127.0.0.1", c.Port, c.Store
	options.NoLog, options.NoSigs, options.DisableShortFirstPing = true, true, true
	running, err := server.NewServer(options)
	if err != nil {
		panic(err)
	}
	running.Start()
	if !running.ReadyForConnections(time.Minute) {
		panic("the server accepts no clients")
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// natsServer is one server of the cluster.
type natsServer struct {
	name    string
	config  childConfig
	process *exec.Cmd
	stdin   io.WriteCloser
}

// natsServers are three servers, configured as `lockstep nats init --cluster` does.
type natsServers struct {
	dir string
	all []*natsServer
}

func startServers(t *testing.T) *natsServers {
	t.Helper()
	c := &natsServers{dir: filepath.Join(t.TempDir(), "nats")}
	hold := func() int {
		held, err := port.Hold()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, held.Release()) })
		return held.Number()
	}
	cluster := &natsauth.Cluster{Name: string(stack.Cell)}
	for i := range 3 {
		name := fmt.Sprintf("nats-%d", i)
		cluster.Servers = append(cluster.Servers, natsauth.ClusterServer{Name: name, Host: "127.0.0.1", Port: hold()})
		c.all = append(c.all, &natsServer{name: name, config: childConfig{
			File: filepath.Join(c.dir, name+".conf"), Port: hold(), Store: t.TempDir(),
		}})
	}
	_, err := natsauth.Init(c.dir, natsauth.Options{
		Cell: stack.Cell, Cluster: cluster, Principals: []natsauth.StaticPrincipal{natsadmin.Principal()},
	})
	require.NoError(t, err)
	for _, s := range c.all {
		s.start(t)
		t.Cleanup(s.kill)
	}
	return c
}

// url has all servers.
func (c *natsServers) url() string {
	var urls []string
	for _, s := range c.all {
		urls = append(urls, fmt.Sprintf("nats://127.0.0.1:%d", s.config.Port))
	}
	return strings.Join(urls, ",")
}

// start returns when the server accepts clients.
func (s *natsServer) start(t *testing.T) {
	t.Helper()
	raw, err := json.Marshal(s.config)
	require.NoError(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	s.process = exec.Command(self)
	s.process.Env = append(os.Environ(), childVariable+"="+string(raw), "GOMEMLIMIT=256MiB")
	s.process.Stderr = t.Output()
	s.stdin, err = s.process.StdinPipe()
	require.NoError(t, err)
	stdout, err := s.process.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, s.process.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
}

// kill ends the server as a power failure does. Further calls do nothing.
func (s *natsServer) kill() {
	if s.process == nil {
		return
	}
	_ = s.process.Process.Kill()
	_ = s.process.Wait()
	_ = s.stdin.Close()
	s.process = nil
}
