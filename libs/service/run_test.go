package service_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/service"
	"lockstep.internal/schemas/gen/errcode"
)

const timeout = time.Minute

// process is a service that runs.
type process struct {
	t       *testing.T
	cancel  context.CancelFunc
	addrs   map[string]string // once listening
	ready   chan struct{}
	ended   chan error
	metrics *prometheus.Registry
	log     *buffer
	client  *http.Client
}

// start runs the parts; the process ends with the test.
func start(t *testing.T, change func(*service.Config), parts ...service.Part) *process {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{
		t: t, cancel: cancel, ready: make(chan struct{}), ended: make(chan error, 1),
		metrics: prometheus.NewRegistry(), log: &buffer{}, client: newClient(t),
	}
	listening := make(chan map[string]string, 1)
	cfg := service.DefaultConfig("127.0.0.1:0")
	cfg.OnListen = func(addrs map[string]string) { listening <- addrs }
	cfg.OnReady = func(map[string]string) { close(p.ready) }
	if change != nil {
		change(&cfg)
	}
	options := service.Options{
		Name: "test", Config: cfg, Logger: slog.New(slog.NewTextHandler(p.log, nil)), Metrics: p.metrics,
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.ended <- service.Run(ctx, options, parts...)
	}()
	t.Cleanup(func() { cancel(); <-done })
	select {
	case p.addrs = <-listening:
	case <-done:
	}
	return p
}

// waitForReport waits until /readyz contains the text.
func (p *process) waitForReport(want string) {
	p.t.Helper()
	require.Eventually(p.t, func() bool {
		_, body := get(p.t, p.client, "http://"+p.addrs["ops"]+"/readyz", "")
		return strings.Contains(body, want)
	}, timeout, time.Millisecond, want)
}

// recordingPart is ready at once and records when it stops.
func recordingPart(name string, ended *record, uses ...string) service.Part {
	part := service.Func(name, func(ctx context.Context) error {
		<-ctx.Done()
		ended.add(name)
		return nil
	})
	part.StopBefore = uses
	return part
}

type record struct {
	mu    sync.Mutex
	names []string
}

func (r *record) add(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.names = append(r.names, name)
}

func TestFailedPartReportsTheReasonAndRestarts(t *testing.T) {
	t.Parallel()
	heal := make(chan struct{})
	p := start(t, nil, service.Part{Name: "flaky", Run: func(ctx context.Context, part *service.Handle) error {
		select {
		case <-heal:
		default:
			return errors.New("the database is unavailable")
		}
		part.Ready()
		<-ctx.Done()
		return ctx.Err()
	}}, service.Part{
		Name:       "late",
		StartAfter: []string{"flaky"},
		Run: func(ctx context.Context, part *service.Handle) error {
			part.Ready()
			<-ctx.Done()
			return nil
		},
	})
	p.waitForReport("not ready\n")
	p.waitForReport("[no] flaky: the database is unavailable")
	p.waitForReport("[no] late: waits for flaky")
	require.Eventually(
		t, func() bool { return count(t, p.metrics, "lockstep_part_restarts_total", "flaky") >= 2 }, timeout,
		time.Millisecond,
	)
	close(heal)
	<-p.ready
	p.waitForReport("[ok] late")
	p.cancel()
	require.NoError(t, <-p.ended)
	require.NotContains(t, p.log.String(), "ended with an error")
}

func count(t *testing.T, metrics *prometheus.Registry, name, part string) float64 {
	t.Helper()
	families, err := metrics.Gather()
	require.NoError(t, err)
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if family.GetName() == name && metric.GetLabel()[0].GetValue() == part {
				return metric.GetCounter().GetValue()
			}
		}
	}
	return 0
}

func TestPermanentErrorEndsTheService(t *testing.T) {
	t.Parallel()
	ended := &record{}
	p := start(
		t,
		nil,
		recordingPart("other", ended),
		service.Part{Name: "broken", StartAfter: []string{"other"}, Run: func(context.Context, *service.Handle) error {
			return fmt.Errorf(
				"migrate: %w",
				service.Permanent(fault.New(errcode.FailedPrecondition, "the schema is newer than this program")),
			)
		}},
	)
	err := <-p.ended
	require.ErrorContains(
		t, err, "service test: broken: migrate: failed_precondition: the schema is newer than this program",
	)
	require.Equal(t, errcode.FailedPrecondition, fault.CodeOf(err))
	require.Equal(t, []string{"other"}, ended.names, "the others are drained")
}

func TestCompletedPartStaysReady(t *testing.T) {
	t.Parallel()
	p := start(
		t,
		nil,
		service.Part{Name: "migration", Run: func(context.Context, *service.Handle) error { return nil }},
		service.Part{
			Name:       "reader",
			StartAfter: []string{"migration"},
			Run: func(ctx context.Context, part *service.Handle) error {
				part.Ready()
				<-ctx.Done()
				return nil
			},
		},
	)
	<-p.ready
	p.cancel()
	require.NoError(t, <-p.ended)
}

func TestPartsStopInOrder(t *testing.T) {
	t.Parallel()
	ended := &record{}
	p := start(
		t, nil, recordingPart("database", ended), recordingPart("nats", ended),
		recordingPart("outbox", ended, "database", "nats"),
		recordingPart("api", ended, "outbox", "database"),
	)
	<-p.ready
	p.cancel()
	require.NoError(t, <-p.ended)
	require.Equal(t, []string{"api", "outbox"}, ended.names[:2])
	require.ElementsMatch(t, []string{"database", "nats"}, ended.names[2:])
}

func TestDrainTimeoutNamesTheParts(t *testing.T) {
	t.Parallel()
	ended := &record{}
	cut := make(chan struct{})
	p := start(t, func(cfg *service.Config) { cfg.DrainTimeout = 20 * time.Millisecond }, recordingPart("quick", ended),
		service.Part{Name: "slow", StopBefore: []string{"quick"}, Run: func(ctx context.Context, part *service.Handle) error {
			part.Ready()
			<-ctx.Done()
			<-part.DrainContext().Done()
			close(cut)
			return part.DrainContext().Err()
		}})
	<-p.ready
	p.cancel()
	err := <-p.ended
	<-cut
	require.Equal(t, errcode.DeadlineExceeded, fault.CodeOf(err))
	require.ErrorContains(t, err, "not drained within 20ms: quick, slow", "quick waits for slow, which uses it")
}

func TestChecksSetReadiness(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	reply := errors.New("no route to host")
	set := func(err error) { mu.Lock(); defer mu.Unlock(); reply = err }
	p := start(
		t, nil,
		service.Part{Name: "postgres", Check: func(context.Context) error { mu.Lock(); defer mu.Unlock(); return reply }},
	)
	p.waitForReport("[no] postgres: no route to host")
	set(service.Degraded(errors.New("slow")))
	<-p.ready
	p.waitForReport("ready\n[!!] postgres: slow")
	set(nil)
	p.waitForReport("[ok] postgres (since")
	set(errors.New("gone"))
	p.waitForReport("[no] postgres: gone")
	require.NoError(t, testutil.GatherAndCompare(p.metrics, strings.NewReader(`
# HELP lockstep_part_ready Whether a part of the service is ready.
# TYPE lockstep_part_ready gauge
lockstep_part_ready{part="postgres"} 0
`), "lockstep_part_ready"))
	require.NoError(t, service.Degraded(nil))
}

func TestServiceWithoutPartsIsReady(t *testing.T) {
	t.Parallel()
	p := start(t, nil)
	<-p.ready
	p.waitForReport("ready\n")
	code, body := get(t, p.client, "http://"+p.addrs["ops"]+"/", "")
	require.Equal(t, 200, code)
	require.Contains(t, body, "/metrics")
	code, _ = get(t, p.client, "http://"+p.addrs["ops"]+"/nothing", "")
	require.Equal(t, 404, code)
}

func TestAddressInUseEndsTheService(t *testing.T) {
	t.Parallel()
	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	options := service.HTTPOptions{Logger: slog.New(slog.DiscardHandler)}
	var opened net.Listener
	p := start(t, nil,
		service.Part{Name: "first", Listen: func(ctx context.Context) (net.Listener, error) {
			opened, err = new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
			return opened, err
		}, Run: func(context.Context, *service.Handle) error { return nil }},
		service.HTTPServer("api", service.DefaultListener(taken.Addr().String()), http.NotFoundHandler(), options))
	require.ErrorContains(t, <-p.ended, "api: cannot listen: listen tcp "+taken.Addr().String())
	require.ErrorIs(t, opened.Close(), net.ErrClosed)
}

func TestRunRejectsInvalidParts(t *testing.T) {
	t.Parallel()
	run := func(context.Context) error { return nil }
	with := func(name string, uses, after []string) service.Part {
		part := service.Func(name, run)
		part.StopBefore, part.StartAfter = uses, after
		return part
	}
	for want, parts := range map[string][]service.Part{
		`part name ""`:                       {service.Func("", run)},
		`part name "ops"`:                    {service.Func("ops", run)},
		`part name "a"`:                      {service.Func("a", run), service.Func("a", run)},
		`part a depends on unknown part "b"`: {with("a", []string{"b"}, nil)},
		"part a depends on itself":           {with("a", nil, []string{"b"}), with("b", []string{"a"}, nil)},
		"part b depends on itself":           {service.Func("a", run), with("b", nil, []string{"b"})},
	} {
		p := start(t, nil, parts...)
		require.ErrorContains(t, <-p.ended, want)
	}
}
