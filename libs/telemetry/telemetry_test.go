package telemetry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/telemetry"
)

func open(t *testing.T, cfg telemetry.Config, options telemetry.Options) *telemetry.Telemetry {
	t.Helper()
	if options.Out == nil {
		options.Out = io.Discard
	}
	if options.Getenv == nil {
		options.Getenv = func(string) string { return "" }
	}
	options.Service, options.Version = "state", "v1"
	tel, err := telemetry.Open(t.Context(), cfg, options)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tel.Close(context.Background()) })
	return tel
}

// lines decodes a JSON log.
func lines(t *testing.T, log []byte) []map[string]any {
	t.Helper()
	var all []map[string]any
	for line := range bytes.Lines(log) {
		entry := map[string]any{}
		require.NoError(t, json.Unmarshal(line, &entry))
		all = append(all, entry)
	}
	return all
}

// Keys of log entries.
const (
	keyA = "a"
	keyB = "b"
	keyC = "c"
)

func TestLogEntriesCarryTheTrace(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	tel := open(t, telemetry.DefaultConfig(), telemetry.Options{Out: &log})
	ctx, span := tel.Tracer.Start(t.Context(), "work")
	defer span.End()
	tel.Logger.InfoContext(t.Context(), "without")
	group := tel.Logger.With(slog.Int(keyA, 1)).WithGroup("g").With(slog.Int(keyB, 2))
	group.WithGroup("").InfoContext(ctx, "with", slog.Int(keyC, 3))
	tel.Logger.DebugContext(ctx, "too detailed")

	entries := lines(t, log.Bytes())
	require.Len(t, entries, 2)
	require.NotContains(t, entries[0], "trace_id")
	require.Equal(t, "state", entries[0]["service"])
	require.Equal(
		t, span.SpanContext().TraceID().String(), entries[1]["trace_id"], "at the top although the logger is in a group",
	)
	require.Equal(t, span.SpanContext().SpanID().String(), entries[1]["span_id"])
	require.InDelta(t, 1, entries[1]["a"], 0)
	require.Equal(t, map[string]any{"b": 2.0, "c": 3.0}, entries[1]["g"])
}

func TestLoggersOfOneGroupDoNotMix(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	group := telemetry.NewLogger(telemetry.DefaultConfig(), "state", &log).WithGroup("g").With(slog.Int(keyA, 1))
	one, two := group.With(slog.Int(keyB, 1)), group.With(slog.Int(keyB, 2))
	one.Info("")
	two.Info("")
	entries := lines(t, log.Bytes())
	require.Equal(t, map[string]any{"a": 1.0, "b": 1.0}, entries[0]["g"])
	require.Equal(t, map[string]any{"a": 1.0, "b": 2.0}, entries[1]["g"])
}

func TestLogLevelAndFormat(t *testing.T) {
	t.Parallel()
	for level, want := range map[string]int{"debug": 4, "info": 3, "warn": 2, "error": 1} {
		var log bytes.Buffer
		cfg := telemetry.DefaultConfig()
		cfg.LogLevel, cfg.LogFormat = level, "text"
		logger := telemetry.NewLogger(cfg, "state", &log)
		logger.Debug("x")
		logger.Info("x")
		logger.Warn("x")
		logger.Error("x")
		require.Equal(t, want, strings.Count(log.String(), "service=state"), level)
	}
}

func TestTraceCrossesNATSHeaders(t *testing.T) {
	t.Parallel()
	tel := open(t, telemetry.DefaultConfig(), telemetry.Options{})
	ctx, span := tel.Tracer.Start(t.Context(), "send")
	defer span.End()
	header := nats.Header{}
	telemetry.Inject(ctx, header)
	require.Len(t, header["traceparent"], 1)
	received := oteltrace.SpanContextFromContext(telemetry.Extract(t.Context(), header))
	require.Equal(t, span.SpanContext().TraceID(), received.TraceID())
	require.True(t, received.IsRemote())

	canonical := nats.Header{"Traceparent": header["traceparent"]}
	require.Equal(t, received, oteltrace.SpanContextFromContext(telemetry.Extract(t.Context(), canonical)))

	for name, broken := range map[string]nats.Header{
		"none":      nil,
		"empty":     {"traceparent": {}},
		"malformed": {"traceparent": {"00-xyz-1-1"}},
		"zero":      {"traceparent": {"00-00000000000000000000000000000000-0000000000000000-01"}},
	} {
		require.False(t, oteltrace.SpanContextFromContext(telemetry.Extract(t.Context(), broken)).IsValid(), name)
	}
	empty := nats.Header{}
	telemetry.Inject(t.Context(), empty)
	require.Empty(t, empty)
}

func FuzzExtract(f *testing.F) {
	f.Add("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=b")
	f.Add("Traceparent", "00-\x00", ",,")
	f.Fuzz(func(t *testing.T, name, parent, state string) {
		ctx := telemetry.Extract(t.Context(), nats.Header{name: {parent}, "tracestate": {state}})
		header := nats.Header{}
		telemetry.Inject(ctx, header)
		again := telemetry.Extract(t.Context(), header)
		require.True(t, oteltrace.SpanContextFromContext(ctx).Equal(oteltrace.SpanContextFromContext(again)))
	})
}

func TestRegistryContainsBuildInfo(t *testing.T) {
	t.Parallel()
	one := open(t, telemetry.DefaultConfig(), telemetry.Options{})
	two := open(t, telemetry.DefaultConfig(), telemetry.Options{})
	require.NotSame(t, one.Metrics, two.Metrics)
	n, err := testutil.GatherAndCount(one.Metrics, "lockstep_build_info", "go_goroutines", "process_open_fds")
	require.NoError(t, err)
	require.Equal(t, 3, n)
}

// otlp is a collector of both protocols.
type otlp struct {
	collector.UnimplementedTraceServiceServer

	mu     sync.Mutex
	names  []string
	grpc   string
	http   string
	broken bool
}

func (o *otlp) Export(
	_ context.Context, request *collector.ExportTraceServiceRequest,
) (*collector.ExportTraceServiceResponse, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.broken {
		return nil, errors.New("the disk is full")
	}
	for _, resource := range request.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				o.names = append(o.names, span.GetName())
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func (o *otlp) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	request := &collector.ExportTraceServiceRequest{}
	if err != nil || proto.Unmarshal(raw, request) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if _, err := o.Export(r.Context(), request); err != nil {
		w.WriteHeader(http.StatusBadRequest)
	}
}

func startCollector(t *testing.T) *otlp {
	t.Helper()
	o := &otlp{}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, o)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-served })
	o.grpc = "http://" + listener.Addr().String()
	web := httptest.NewServer(o)
	t.Cleanup(web.Close)
	o.http = web.URL
	return o
}

func TestSpansReachACollectorOfEitherProtocol(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"", "grpc", "http/protobuf"} {
		t.Run("by "+protocol, func(t *testing.T) {
			t.Parallel()
			o := startCollector(t)
			cfg := telemetry.DefaultConfig()
			cfg.OTLPProtocol, cfg.OTLPEndpoint = protocol, o.grpc
			if protocol == "http/protobuf" {
				cfg.OTLPEndpoint = o.http
			}
			tel := open(t, cfg, telemetry.Options{})
			_, span := tel.Tracer.Start(t.Context(), "work")
			span.End()
			require.NoError(t, tel.Close(t.Context()))
			require.Equal(t, []string{"work"}, o.names)
		})
	}
}

func TestFailingCollectorLosesSpansOnly(t *testing.T) {
	t.Parallel()
	o := startCollector(t)
	o.broken = true
	var log bytes.Buffer
	cfg := telemetry.DefaultConfig()
	cfg.OTLPEndpoint, cfg.OTLPProtocol = o.http, "http/protobuf"
	tel := open(t, cfg, telemetry.Options{Out: &log})
	_, span := tel.Tracer.Start(t.Context(), "work")
	span.End()
	require.NoError(t, tel.Close(t.Context()))
	require.Contains(t, log.String(), "trace export failed, spans dropped")
	require.Contains(t, log.String(), `"lost":1`)
}

func TestStandardVariablesEnableTraces(t *testing.T) {
	t.Parallel()
	env := func(pairs ...string) telemetry.Options {
		return telemetry.Options{Out: io.Discard, Service: "x", Getenv: func(name string) string {
			for i := 0; i < len(pairs); i += 2 {
				if pairs[i] == name {
					return pairs[i+1]
				}
			}
			return ""
		}}
	}
	// A protocol that does not exist is only looked at when traces are on.
	for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"} {
		_, err := telemetry.Open(
			t.Context(),
			telemetry.DefaultConfig(),
			env(name, "http://c", "OTEL_EXPORTER_OTLP_PROTOCOL", "pigeon"),
		)
		require.ErrorContains(t, err, `"pigeon"`)
		tel, err := telemetry.Open(
			t.Context(),
			telemetry.DefaultConfig(),
			env(name, "http://c", "OTEL_EXPORTER_OTLP_PROTOCOL", "pigeon", "OTEL_SDK_DISABLED", "true"),
		)
		require.NoError(t, err)
		require.NoError(t, tel.Close(t.Context()))
	}
	tel, err := telemetry.Open(t.Context(), telemetry.DefaultConfig(), env("OTEL_EXPORTER_OTLP_PROTOCOL", "pigeon"))
	require.NoError(t, err)
	require.NoError(t, tel.Close(t.Context()))
}

func TestOneTraceFromCallerToHandler(t *testing.T) {
	t.Parallel()
	exporter := tracetest.NewInMemoryExporter()
	tel := open(t, telemetry.DefaultConfig(), telemetry.Options{Exporter: keep{exporter}})
	interceptor, err := tel.Connect()
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.Handle(
		"/rpc.S/M",
		connect.NewUnaryHandler(
			"/rpc.S/M",
			func(context.Context, *connect.Request[emptypb.Empty]) (*connect.Response[emptypb.Empty], error) {
				return connect.NewResponse(&emptypb.Empty{}), nil
			},
			connect.WithInterceptors(interceptor),
		),
	)
	mux.Handle("GET /plain/{id}", tel.HTTP(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	server := httptest.NewServer(mux)
	defer server.Close()

	ctx, root := tel.Tracer.Start(t.Context(), "root")
	client := connect.NewClient[emptypb.Empty, emptypb.Empty](
		server.Client(), server.URL+"/rpc.S/M", connect.WithInterceptors(interceptor),
	)
	_, err = client.CallUnary(ctx, connect.NewRequest(&emptypb.Empty{}))
	require.NoError(t, err)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/plain/7", http.NoBody)
	require.NoError(t, err)
	response, err := (&http.Client{Transport: tel.Transport(server.Client().Transport)}).Do(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	root.End()
	require.NoError(t, tel.Close(t.Context()))

	names := map[string]int{}
	for _, span := range exporter.GetSpans() {
		require.Equal(t, root.SpanContext().TraceID(), span.SpanContext.TraceID(), span.Name)
		names[span.Name]++
	}
	require.Equal(t, 2, names["rpc.S/M"], names)
	require.Equal(t, 1, names["GET /plain/{id}"], names)
}

// keep ignores Shutdown, which would reset the exporter.
type keep struct{ *tracetest.InMemoryExporter }

func (keep) Shutdown(context.Context) error { return nil }

var _ trace.SpanExporter = keep{}

func TestValidate(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*telemetry.Config)
		want   string
	}{
		"default":  {func(*telemetry.Config) {}, ""},
		"endpoint": {func(c *telemetry.Config) { c.OTLPEndpoint = "https://c:4317" }, ""},
		"no URL":   {func(c *telemetry.Config) { c.OTLPEndpoint = "c:4317" }, "telemetry.otlp_endpoint"},
		"ratio":    {func(c *telemetry.Config) { c.SampleRatio = 1.5 }, "telemetry.sample_ratio"},
		"level":    {func(c *telemetry.Config) { c.LogLevel = "loud" }, `"loud" is not one of debug, info, warn, error`},
		"format":   {func(c *telemetry.Config) { c.LogFormat = "" }, "telemetry.log_format"},
		"protocol": {func(c *telemetry.Config) { c.OTLPProtocol = "pigeon" }, "telemetry.otlp_protocol"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := telemetry.DefaultConfig()
			binding, err := config.Bind(&cfg, "telemetry")
			require.NoError(t, err)
			tc.change(&cfg)
			err = binding.Validate()
			if tc.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tc.want)
		})
	}
}
