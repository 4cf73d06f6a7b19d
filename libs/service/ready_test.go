package service_test

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/internal/testcert"
	"lockstep.internal/libs/service"
	"lockstep.internal/tools/testkit/port"
)

// checkReady runs a program with --check-ready and further arguments.
func checkReady(t *testing.T, args ...string) (int, string, string) {
	t.Helper()
	stdout, stderr := &buffer{}, &buffer{}
	status := service.Execute(service.Process{
		Args: append([]string{"--check-ready"}, args...), Stdout: stdout, Stderr: stderr, ReadyTimeout: timeout,
	}, config.Program{Name: "lockstep-greeter"}, greeterDefaults(), func(context.Context, greeterConfig) error {
		t.Error("the service itself has been started")
		return nil
	})
	return status, stdout.String(), stderr.String()
}

func TestCheckReadyAsksTheRunningInstance(t *testing.T) {
	t.Parallel()
	open := make(chan struct{})
	p := start(t, nil, service.Part{Name: "gate", Run: func(ctx context.Context, part *service.Handle) error {
		part.NotReady("closed")
		select {
		case <-open:
			part.Ready()
		case <-ctx.Done():
		}
		<-ctx.Done()
		return nil
	}})
	_, port, err := net.SplitHostPort(p.addrs["ops"])
	require.NoError(t, err)

	status, stdout, stderr := checkReady(t, "--ops-listen="+p.addrs["ops"])
	require.Equal(t, 1, status)
	require.Contains(t, stdout, "[no] gate")
	require.Contains(t, stderr, "503")

	close(open)
	<-p.ready
	// A wildcard address is checked on the loopback address.
	for _, address := range []string{p.addrs["ops"], ":" + port, "0.0.0.0:" + port, "localhost:" + port} {
		status, stdout, stderr = checkReady(t, "--ops-listen="+address)
		require.Equal(t, 0, status, stderr)
		require.Contains(t, stdout, "[ok] gate")
		require.Empty(t, stderr)
	}
}

func TestCheckReadyOverTLS(t *testing.T) {
	t.Parallel()
	authority := testcert.New(t)
	certFile, keyFile := authority.Issue(t, t.TempDir(), "ops")
	p := start(t, func(cfg *service.Config) {
		cfg.Ops.TLS = service.TLS{CertFile: certFile, KeyFile: keyFile, ClientCAFile: authority.CAFile}
	})
	<-p.ready
	status, _, stderr := checkReady(t, "--ops-listen="+p.addrs["ops"], "--ops-tls-cert-file="+certFile,
		"--ops-tls-key-file="+keyFile, "--ops-tls-client-ca-file="+authority.CAFile)
	require.Equal(t, 0, status, stderr)
}

func TestCheckReadyFailsWithoutAnInstance(t *testing.T) {
	t.Parallel()
	held, err := port.Hold()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, held.Release()) })
	gone := held.Address()
	status, _, stderr := checkReady(t, "--ops-listen="+gone)
	require.Equal(t, 1, status)
	require.Contains(t, stderr, "nothing answers on the ops listener "+gone)

	status, _, stderr = checkReady(t) // its default takes a free port
	require.Equal(t, 1, status)
	require.Contains(t, stderr, "needs a fixed port")

	type bare struct {
		Greeting string `yaml:"greeting" help:"how to greet"`
	}
	log := &buffer{}
	require.Equal(t, 1, service.Execute(service.Process{Args: []string{"--check-ready"}, Stdout: io.Discard, Stderr: log},
		config.Program{Name: "bare"}, bare{}, func(context.Context, bare) error { return nil }))
	require.Contains(t, log.String(), "does not embed service.Config")
}

func TestCheckReadyUsesTheServicesConfiguration(t *testing.T) {
	t.Parallel()
	p := start(t, nil)
	<-p.ready
	file := filepath.Join(t.TempDir(), "greeter.yaml")
	require.NoError(t, os.WriteFile(file, []byte("ops: {listen: '"+p.addrs["ops"]+"'}\n"), 0o600))
	status, stdout, stderr := checkReady(t, "--config", file)
	require.Equal(t, 0, status, stderr)
	require.Contains(t, stdout, "ready")

	status, _, stderr = checkReady(t, "--config", file, "--greeting=")
	require.Equal(t, 2, status)
	require.Contains(t, stderr, "greeting")
}
