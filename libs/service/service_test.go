package service_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/tools/testkit/port"
)

// greeterConfig and greeterMain are a whole service, as services write it.
type greeterConfig struct {
	service.Config `yaml:",inline"`

	Telemetry telemetry.Config `yaml:"telemetry" help:"logs and traces"`
	API       service.Listener `yaml:"api" help:"the listener for callers"`
	Greeting  string           `yaml:"greeting" help:"how to greet"`
}

func greeterDefaults() greeterConfig {
	return greeterConfig{
		Config:    service.DefaultConfig("127.0.0.1:0"),
		Telemetry: telemetry.DefaultConfig(),
		API:       service.DefaultListener("127.0.0.1:0"),
		Greeting:  "hello",
	}
}

func (c greeterConfig) Validate() []error {
	if c.Greeting == "" {
		return []error{config.Invalid("greeting", "is empty")}
	}
	return nil
}

func greeterMain(
	out io.Writer, entered chan<- struct{}, release <-chan struct{},
) func(context.Context, greeterConfig) error {
	return func(ctx context.Context, cfg greeterConfig) error {
		tel, err := telemetry.Open(ctx, cfg.Telemetry, telemetry.Options{Service: "greeter", Version: "v1", Out: out})
		if err != nil {
			return err
		}
		defer func() { _ = tel.Close(context.WithoutCancel(ctx)) }()
		mux := http.NewServeMux()
		mux.Handle("GET /greet/{name}", fault.Handler(tel.Logger, func(w http.ResponseWriter, r *http.Request) error {
			switch r.PathValue("name") {
			case "nobody":
				return fault.New(errcode.NotFound, "nobody is not here").With("name", "nobody")
			case "slow":
				entered <- struct{}{}
				<-release
			}
			_, err := fmt.Fprintf(w, "%s %s", cfg.Greeting, r.PathValue("name"))
			return err
		}))
		worker := service.Func("worker", func(ctx context.Context) error {
			<-ctx.Done()
			tel.Logger.Info("worker has finished")
			return nil
		})
		api := service.HTTPServer(
			"api", cfg.API, tel.HTTP(mux), service.HTTPOptions{Logger: tel.Logger, Metrics: tel.Metrics},
		)
		return service.Run(
			ctx, service.Options{Name: "greeter", Config: cfg.Config, Logger: tel.Logger, Metrics: tel.Metrics}, worker, api,
		)
	}
}

func TestServiceIsConfiguredServesAndDrains(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "greeter.yaml")
	require.NoError(t, os.WriteFile(file, []byte("greeting: good day\ntelemetry: {log_level: debug}\n"), 0o600))
	signals, entered, release := make(chan os.Signal, 2), make(chan struct{}), make(chan struct{})
	ready, status := make(chan map[string]string, 1), make(chan int, 1)
	log := &buffer{}
	held, err := port.Hold() // nobody else listens on it after the service
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, held.Release()) })
	defaults := greeterDefaults()
	defaults.Ops.Listen = held.Address()
	defaults.OnReady = func(addrs map[string]string) { ready <- addrs }
	go func() {
		status <- service.Execute(service.Process{
			Args: []string{"--config", file}, Environ: []string{"LOCKSTEP_DRAIN_TIMEOUT=1m"},
			Stdout: io.Discard, Stderr: log, Signals: signals, Exit: func(int) { t.Error("exited at the first signal") },
		}, config.Program{Name: "lockstep-greeter"}, defaults, greeterMain(log, entered, release))
	}()
	addrs := <-ready
	client := newClient(t)

	code, body := get(t, client, "http://"+addrs["api"]+"/greet/ada", "")
	require.Equal(t, 200, code)
	require.Equal(t, "good day ada", body)
	code, body = get(t, client, "http://"+addrs["api"]+"/greet/nobody", "")
	require.Equal(t, 404, code)
	require.JSONEq(t, `{"code":"not_found","message":"nobody is not here","details":{"name":"nobody"}}`, body)
	code, body = get(t, client, "http://"+addrs["ops"]+"/livez", "")
	require.Equal(t, 200, code)
	require.Equal(t, "alive\n", body)
	code, body = get(t, client, "http://"+addrs["ops"]+"/readyz", "")
	require.Equal(t, 200, code)
	require.Contains(t, body, "[ok] worker")
	_, body = get(t, client, "http://"+addrs["ops"]+"/metrics", "")
	for _, metric := range []string{
		`lockstep_build_info{go_version=`, `lockstep_part_ready{part="api"} 1`,
		`lockstep_http_request_duration_seconds_count{code="404",listener="api",method="get"} 1`, "go_goroutines",
	} {
		require.Contains(t, body, metric)
	}

	// A request in flight at the signal completes. Meanwhile the ops listener reports that the service is not ready.
	answered := make(chan string, 1)
	slow, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addrs["api"]+"/greet/slow", http.NoBody)
	require.NoError(t, err)
	go func() {
		response, err := client.Do(slow)
		if err != nil {
			answered <- err.Error()
			return
		}
		raw, _ := io.ReadAll(response.Body)
		answered <- string(raw)
		_ = response.Body.Close()
	}()
	<-entered
	signals <- syscall.SIGTERM
	require.Eventually(t, func() bool {
		code, body := get(t, client, "http://"+addrs["ops"]+"/readyz", "application/json")
		var report service.Report
		return code == 503 && json.Unmarshal([]byte(body), &report) == nil && report.Draining
	}, timeout, time.Millisecond)
	close(release)
	require.Equal(t, "good day slow", <-answered)
	require.Equal(t, 0, <-status)
	require.Contains(t, log.String(), "worker has finished")
	_, err = client.Get("http://" + addrs["ops"] + "/livez")
	require.Error(t, err)
}

func TestExecuteStatus(t *testing.T) {
	t.Parallel()
	boom := func(err error) func(context.Context, greeterConfig) error {
		return func(context.Context, greeterConfig) error { return err }
	}
	for name, tc := range map[string]struct {
		args   []string
		main   func(context.Context, greeterConfig) error
		status int
		stdout string
		stderr []string
	}{
		"success": {nil, boom(nil), 0, "", nil},
		"fault": {
			nil,
			boom(fmt.Errorf("open: %w", fault.New(errcode.Unavailable, "gone"))),
			13,
			"",
			[]string{"greeter: open: unavailable: gone"},
		},
		"unknown error": {nil, boom(errors.New("boom")), 1, "", []string{"greeter: boom"}},
		"version":       {[]string{"--version"}, nil, 0, "greeter v7\n", nil},
		"help":          {[]string{"--help"}, nil, 0, "--api-tls-cert-file", nil},
		"two config fault": {
			[]string{"--greeting=", "--drain-timeout=x"},
			nil, 2, "",
			[]string{
				"greeting (LOCKSTEP_GREETING, --greeting): is empty",
				`drain_timeout (LOCKSTEP_DRAIN_TIMEOUT, --drain-timeout): "x" is not a duration`,
			},
		},
		"unknown flag": {[]string{"--greting=x"}, nil, 2, "", []string{"did you mean --greeting?"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			status := service.Execute(service.Process{Args: tc.args, Stdout: &stdout, Stderr: &stderr},
				config.Program{Name: "greeter", Version: "v7"}, greeterDefaults(), tc.main)
			require.Equal(t, tc.status, status, stderr.String())
			require.Contains(t, stdout.String(), tc.stdout)
			for _, want := range tc.stderr {
				require.Contains(t, stderr.String(), want)
			}
		})
	}
}

func TestSecondSignalExitsAtOnce(t *testing.T) {
	t.Parallel()
	signals, exits, release := make(chan os.Signal, 2), make(chan int, 1), make(chan struct{})
	done := make(chan int, 1)
	go func() {
		done <- service.Execute(service.Process{
			Stdout:  io.Discard,
			Stderr:  io.Discard,
			Signals: signals,
			Exit:    func(status int) { exits <- status },
		},
			config.Program{Name: "greeter"}, greeterDefaults(), func(ctx context.Context, _ greeterConfig) error {
				<-ctx.Done()
				<-release // hangs in its drain
				return ctx.Err()
			})
	}()
	signals <- syscall.SIGINT
	signals <- syscall.SIGINT
	require.Equal(t, 130, <-exits)
	close(release)
	require.Equal(t, 0, <-done)
}

// buffer is a bytes.Buffer for several writers.
type buffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func newClient(t *testing.T) *http.Client {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func get(t *testing.T, client *http.Client, url, accept string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	request.Header.Set("Accept", accept)
	response, err := client.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(raw)
}
