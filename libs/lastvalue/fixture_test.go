package lastvalue_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/lastvalue"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const (
	timeout = time.Minute
	stream  = "VALUES"
	// never is a probe interval that no test reaches.
	never = time.Hour
)

// makeStream creates a stream as package topology declares those that keep the last message of each subject.
func makeStream(t *testing.T, js jetstream.JetStream, replicas int, direct bool) jetstream.Stream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	made, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name: stream, Subjects: []string{"value.>"}, MaxMsgsPerSubject: 1, AllowDirect: direct, Replicas: replicas,
		RePublish: &jetstream.RePublish{Source: "value.>", Destination: "live.>", HeadersOnly: true},
	})
	require.NoError(t, err)
	return made
}

// values is a handler that keeps the last value of each subject.
type values struct {
	mu      sync.Mutex
	known   map[string]string
	order   []uint64
	begun   int
	changed chan struct{} // closed with the next value
	ready   chan struct{}
}

func (v *values) Begin(replaced bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.begun++
	v.order = nil
	if replaced {
		clear(v.known)
	}
}

func (v *values) Apply(_ context.Context, m lastvalue.Message) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.known[m.Subject] = string(m.Data)
	v.order = append(v.order, m.Sequence)
	close(v.changed)
	v.changed = make(chan struct{})
}

func (v *values) Loaded() {}

// all returns the last values, and the sequences in the order in which they were applied.
func (v *values) all() (map[string]string, []uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return maps.Clone(v.known), append([]uint64(nil), v.order...)
}

// await waits until the subject has the value.
func (v *values) await(t *testing.T, subject, value string) {
	t.Helper()
	deadline := time.After(timeout)
	for {
		v.mu.Lock()
		changed, known := v.changed, v.known[subject]
		v.mu.Unlock()
		if known == value {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			require.Fail(t, "the value is not read", "%s is %q, not %q", subject, known, value)
		}
	}
}

// read runs a reader of value.a.> until the test ends.
func read(t *testing.T, js jetstream.JetStream, probe time.Duration) (*values, *lastvalue.Reader) {
	t.Helper()
	return readLive(t, js, probe, "live.a.>")
}

func readLive(t *testing.T, js jetstream.JetStream, probe time.Duration, live string) (*values, *lastvalue.Reader) {
	t.Helper()
	v := &values{known: map[string]string{}, changed: make(chan struct{}), ready: make(chan struct{})}
	r := lastvalue.NewReader(lastvalue.Config{
		JetStream: js, Stream: stream, Subjects: "value.a.>", Live: live, Handler: v, Probe: probe,
		Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Run(ctx, func() { close(v.ready) })
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return v, r
}

func (v *values) awaitReady(t *testing.T, r *lastvalue.Reader) {
	t.Helper()
	select {
	case <-v.ready:
	case <-time.After(timeout):
		require.Fail(t, "the stream is not loaded", "%v", r.Check(t.Context()))
	}
}

func publish(t *testing.T, js jetstream.JetStream, subject, value string) {
	t.Helper()
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := js.Publish(ctx, subject, []byte(value))
		return err == nil
	}, timeout, time.Millisecond, "publish %s", subject)
}

// publishMany publishes values of value.a.<i>, each with a size in bytes.
func publishMany(t *testing.T, js jetstream.JetStream, count, size int) {
	t.Helper()
	padding := make([]byte, size)
	for i := range count {
		_, err := js.PublishAsync(fmt.Sprintf("value.a.%d", i), padding)
		require.NoError(t, err)
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-time.After(timeout):
		require.Fail(t, "not all values were stored")
	}
}
