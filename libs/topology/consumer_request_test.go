package topology_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/topology"
)

func reader(change func(*topology.ReaderConsumer)) topology.ConsumerRequest {
	r := topology.ReaderConsumer{Name: "workloads", Stream: topology.StreamObserved, StartSequence: 7}
	change(&r)
	return topology.ConsumerRequest{Reader: &r}
}

func sink(change func(*topology.SinkConsumer)) topology.ConsumerRequest {
	s := topology.SinkConsumer{Name: "chat", Stream: topology.StreamDeploys, AckWait: time.Second, MaxPending: 5}
	change(&s)
	return topology.ConsumerRequest{Sink: &s}
}

func sequence(prefix string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprint(prefix, i)
	}
	return names
}

func TestRequestedConsumersAreBounded(t *testing.T) {
	t.Parallel()
	valid, validSink := reader(func(*topology.ReaderConsumer) {}), sink(func(*topology.SinkConsumer) {})
	for name, c := range map[string]struct {
		service  string
		request  topology.ConsumerRequest
		existing []string
		want     string // part of the error
	}{
		"a reader":                    {"deploys", valid, nil, ""},
		"a reader that is replaced":   {"deploys", valid, append(sequence("deploys-", 200), "deploys-workloads"), ""},
		"readers of others":           {"deploys", valid, sequence("state-", 300), ""},
		"too many readers":            {"deploys", valid, sequence("deploys-", 200), "at most 200"},
		"a reader of another service": {"relay", valid, nil, `service "relay" may not read stream "OBSERVED"`},
		"a reader without a service":  {"", valid, nil, "may not read"},
		"a sink":                      {"deploys", validSink, nil, ""},
		"a sink that exists":          {"deploys", validSink, append(sequence("sink-", 200), "sink-chat"), ""},
		"too many sinks":              {"deploys", validSink, sequence("sink-", 200), "at most 200"},
		"a sink of another service":   {"relay", validSink, nil, "may not have a sink"},
		"nothing":                     {"deploys", topology.ConsumerRequest{}, nil, "either reader or sink"},
		"both": {
			"deploys", topology.ConsumerRequest{Reader: valid.Reader, Sink: validSink.Sink}, nil, "either reader or sink",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := topology.Cell("local").RequestedConsumer(c.service, c.request, c.existing)
			if c.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.want)
			}
		})
	}
}

func TestInvalidConsumerRequestsAreRefused(t *testing.T) {
	t.Parallel()
	for name, request := range map[string]topology.ConsumerRequest{
		"stream":        reader(func(r *topology.ReaderConsumer) { r.Stream = topology.StreamDesired }),
		"no stream":     reader(func(r *topology.ReaderConsumer) { r.Stream = "" }),
		"name":          reader(func(r *topology.ReaderConsumer) { r.Name = "a.b" }),
		"no name":       reader(func(r *topology.ReaderConsumer) { r.Name = "" }),
		"long name":     reader(func(r *topology.ReaderConsumer) { r.Name = strings.Repeat("a", 65) }),
		"no sequence":   reader(func(r *topology.ReaderConsumer) { r.StartSequence = 0 }),
		"subjects":      reader(func(r *topology.ReaderConsumer) { r.Subjects = []string{"lockstep.local.observed.>"} }),
		"sink's stream": sink(func(s *topology.SinkConsumer) { s.Stream = topology.StreamObserved }),
		"sink's name":   sink(func(s *topology.SinkConsumer) { s.Name = "*" }),
		"ack wait":      sink(func(s *topology.SinkConsumer) { s.AckWait = 0 }),
		"long ack wait": sink(func(s *topology.SinkConsumer) { s.AckWait = 48 * time.Hour }),
		"pending":       sink(func(s *topology.SinkConsumer) { s.MaxPending = -1 }),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := topology.Cell("local").RequestedConsumer("deploys", request, nil)
			require.Error(t, err)
		})
	}
}

// FuzzRequestedConsumer: whatever a service requests, it gets a pull consumer of its own on a stream of its own.
func FuzzRequestedConsumer(f *testing.F) {
	for _, request := range []topology.ConsumerRequest{
		reader(func(*topology.ReaderConsumer) {}), sink(func(*topology.SinkConsumer) {}),
		sink(func(s *topology.SinkConsumer) { s.Stream = topology.StreamSinks }),
	} {
		raw, err := json.Marshal(request)
		require.NoError(f, err)
		f.Add("deploys", raw)
	}
	f.Add("relay", []byte(`{"reader":{"stream":"OBSERVED","name":"x","start_sequence":1}}`))
	f.Fuzz(func(t *testing.T, service string, raw []byte) {
		var request topology.ConsumerRequest
		if json.Unmarshal(raw, &request) != nil {
			return
		}
		config, err := topology.Cell("local").RequestedConsumer(service, request, nil)
		if err != nil {
			return
		}
		require.Equal(t, "deploys", service)
		require.Empty(t, config.DeliverSubject)
		require.Empty(t, config.DeliverGroup)
		require.Empty(t, config.FilterSubjects)
		switch request.Stream() {
		case topology.StreamObserved:
			require.True(t, strings.HasPrefix(config.Name, "deploys-"))
			require.Empty(t, config.Durable)
			require.Equal(t, jetstream.AckNonePolicy, config.AckPolicy)
		case topology.StreamDeploys:
			require.True(t, strings.HasPrefix(config.Durable, "sink-"))
			require.Equal(t, "lockstep.local.deploy.>", config.FilterSubject)
		case topology.StreamSinks:
			require.True(t, strings.HasPrefix(config.Durable, "sink-"))
			require.Equal(t, "lockstep.local.sink."+request.Sink.Name+".>", config.FilterSubject)
		default:
			require.Fail(t, "a consumer on a stream of others", request.Stream())
		}
	})
}
