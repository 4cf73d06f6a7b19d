package e2e_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/telemetry"
	"lockstep.internal/services/dispatcher"
	"lockstep.internal/services/state"
	"lockstep.internal/services/watcher"
	"lockstep.internal/tools/stack"
)

// traces is a collector of what the services of a system tell of their work. Texts in it are as they are.
type traces struct {
	url string

	mu       sync.Mutex
	received bytes.Buffer
}

func collectTraces(t *testing.T) *traces {
	t.Helper()
	c := &traces{}
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	c.url = server.URL
	return c
}

// ServeHTTP takes what a service sends.
func (c *traces) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	if err != nil || r.Header.Get("Content-Encoding") != "" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.received.Write(raw)
	c.received.WriteByte('\n')
}

// with has services send everything here, besides what they are configured to do.
func (c *traces) with(configure func(service string, config any)) func(service string, config any) {
	return func(service string, config any) {
		if configure != nil {
			configure(service, config)
		}
		var own *telemetry.Config
		switch service {
		case stack.State:
			own = &config.(*state.Config).Telemetry
		case stack.Watcher:
			own = &config.(*watcher.Config).Telemetry
		case stack.Dispatcher:
			own = &config.(*dispatcher.Config).Telemetry
		default:
			return
		}
		own.OTLPEndpoint, own.OTLPProtocol, own.SampleRatio = c.url, "http/protobuf", 1
	}
}

func (c *traces) all() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Clone(c.received.Bytes())
}

// awaitAll returns when each kind of service has sent something: they send every few seconds.
func (c *traces) awaitAll(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		received := c.all()
		for _, service := range []string{stack.State, stack.Watcher, stack.Dispatcher} {
			if !bytes.Contains(received, []byte("lockstep-"+service)) {
				return false
			}
		}
		return true
	}, patience, clusterTick, "traces of every service")
}
