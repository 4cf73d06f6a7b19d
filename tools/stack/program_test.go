package stack

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/config"
	libservice "lockstep.internal/libs/service"
)

type settings struct {
	libservice.Config `yaml:",inline"`

	Behaviour string `yaml:"behaviour"`
}

// shell is a service whose program is a shell script. $2 is the path of its configuration file.
func shell(t *testing.T, log *bytes.Buffer, script string) *service {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "program")
	// A process that another test starts meanwhile would inherit the open file, and a file that is open for writing
	// cannot be executed.
	syscall.ForkLock.RLock()
	err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700)
	syscall.ForkLock.RUnlock()
	require.NoError(t, err)
	return &service{
		name: "tested", launch: program{path: path, dir: dir, log: log}.launch,
		configure: func(map[string]string) configuration {
			return configuration{settings: &settings{Config: libservice.DefaultConfig("127.0.0.1:0"), Behaviour: "good"}}
		},
	}
}

const logReady = `echo '{"msg":"` + libservice.ReadyMessage + `","addresses":{"api":"127.0.0.1:7"}}' >&2; `

func TestProgramIsReadyAfterReadyMessage(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := shell(t, &log,
		`printf '%s' 'half a line' >&2; echo >&2; grep -q 'behaviour: good' "$2" || exit 9; `+logReady+`exec sleep 600`)
	require.NoError(t, s.start(t.Context()))
	require.Equal(t, "127.0.0.1:7", s.addresses()["api"])
	require.NoError(t, s.kill())
	require.NoError(t, s.start(t.Context()), "a killed program can be started again")
	require.NoError(t, s.kill())
	require.Contains(t, log.String(), "half a line\n")
}

func TestStoppedProgramContinues(t *testing.T) {
	t.Parallel()
	s := shell(t, new(bytes.Buffer), `trap 'exit 0' TERM; `+logReady+`while :; do sleep 0.01; done`)
	require.NoError(t, s.start(t.Context()))
	for _, signal := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
		require.NoError(t, s.do(func(r *Run) error { return r.Signal(signal) }))
	}
	require.NoError(t, s.stop())
}

func TestProgramIsStoppedInOrder(t *testing.T) {
	t.Parallel()
	s := shell(t, new(bytes.Buffer), `trap 'exit 0' TERM; `+logReady+`while :; do sleep 0.01; done`)
	require.NoError(t, s.start(t.Context()))
	require.NoError(t, s.stop())
	s = shell(t, new(bytes.Buffer), `trap 'exit 3' TERM; `+logReady+`while :; do sleep 0.01; done`)
	require.NoError(t, s.start(t.Context()))
	require.ErrorContains(t, s.stop(), "exit status 3")
}

func TestExitedProgramIsDetected(t *testing.T) {
	t.Parallel()
	s := shell(t, new(bytes.Buffer), `exit 3`)
	require.ErrorIs(t, s.start(t.Context()), ErrStopped)
	s = shell(t, new(bytes.Buffer), logReady+`exit 3`)
	require.NoError(t, s.start(t.Context()))
	<-s.current().ended
	require.ErrorIs(t, s.kill(), ErrExited)
}

func TestServiceInProcessCannotBeKilled(t *testing.T) {
	t.Parallel()
	cfg := libservice.DefaultConfig("127.0.0.1:0")
	s := &service{name: "tested", launch: inProcess, configure: func(map[string]string) configuration {
		return configuration{common: &cfg, main: func(ctx context.Context) error {
			cfg.OnReady(nil)
			<-ctx.Done()
			return nil
		}}
	}}
	require.NoError(t, s.start(t.Context()))
	require.ErrorIs(t, s.kill(), ErrInProcess)
	require.NoError(t, s.stop())
}

func TestSettingsRoundTrip(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "settings.yaml")
	written := settings{Config: libservice.DefaultConfig("127.0.0.1:0"), Behaviour: "odd: # yes"}
	require.NoError(t, writeSettings(file, &written))
	var read settings
	_, err := config.Load(&read, config.Program{Name: "tested"}, config.Input{Args: []string{"--config", file}})
	require.NoError(t, err)
	require.Equal(t, written, read)
}
