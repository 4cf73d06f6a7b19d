package relay_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/relay"
)

// childVariable makes the test binary run a relay, in a process that can be killed.
const childVariable = "LOCKSTEP_TEST_RELAY"

// childConfig is the configuration of the relay in the child process.
type childConfig struct {
	NATS   string `json:"nats"`
	Seed   string `json:"seed"`
	Secret string `json:"secret"`
}

// child runs a relay with the given configuration, prints its listen addresses, and exits when stdin closes.
func child(config string) {
	var c childConfig
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		panic(err)
	}
	cfg := relayConfig(c.NATS, c.Seed, c.Secret)
	cfg.OnReady = func(addrs map[string]string) {
		if err := json.NewEncoder(os.Stdout).Encode(addrs); err != nil {
			panic(err)
		}
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := relay.Main(ctx, cfg); err != nil {
		panic(err)
	}
}

// process is a relay in a process of its own.
type process struct {
	running

	command *exec.Cmd
	killed  sync.Once
}

// kill sends SIGKILL.
func (p *process) kill() {
	p.killed.Do(func() {
		_ = p.command.Process.Kill()
		_ = p.command.Wait()
	})
}

// endLease removes the lease of a killed relay, as its expiry does.
func (f *fixture) endLease(p *process) {
	f.t.Helper()
	kv, err := f.jetStreamAs(natsauth.PrincipalRelay).KeyValue(f.t.Context(), topology.BucketRelays)
	require.NoError(f.t, err)
	keys, err := kv.Keys(f.t.Context())
	require.NoError(f.t, err)
	ended := 0
	for _, key := range keys {
		entry, err := kv.Get(f.t.Context(), key)
		require.NoError(f.t, err)
		if strings.HasPrefix(key, "relay.") && strings.Contains(string(entry.Value()), p.addrs["internal"]) {
			require.NoError(f.t, kv.Purge(f.t.Context(), key))
			ended++
		}
	}
	require.Equal(f.t, 1, ended)
}

func (f *fixture) process() *process {
	f.t.Helper()
	config, err := json.Marshal(childConfig{
		NATS: f.server.ClientURL(), Seed: natsauth.SeedFile(f.dir, natsauth.PrincipalRelay), Secret: f.secret(),
	})
	require.NoError(f.t, err)
	self, err := os.Executable()
	require.NoError(f.t, err)
	p := &process{command: exec.Command(self)}
	p.command.Env = append(os.Environ(), childVariable+"="+string(config))
	_, err = p.command.StdinPipe() // it ends with this process
	require.NoError(f.t, err)
	out, err := p.command.StdoutPipe()
	require.NoError(f.t, err)
	var failure bytes.Buffer
	p.command.Stderr = &failure
	require.NoError(f.t, p.command.Start())
	f.t.Cleanup(p.kill)
	line, err := bufio.NewReader(out).ReadBytes('\n')
	require.NoError(f.t, err, "the relay exited: %s", &failure)
	require.NoError(f.t, json.Unmarshal(line, &p.addrs))
	return p
}
