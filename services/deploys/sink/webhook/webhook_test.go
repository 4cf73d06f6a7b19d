package webhook_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/egress"
	"lockstep.internal/libs/event"
	"lockstep.internal/libs/retry"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/sink"
	"lockstep.internal/services/deploys/sink/webhook"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func secret(n byte) string {
	return "whsec_" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat(string('a'+rune(n)), 24)))
}

// receiver is an HTTP server that verifies the signatures of Standard Webhooks and returns the responses that the test
// configures.
type receiver struct {
	*httptest.Server

	mu      sync.Mutex
	respond func(w http.ResponseWriter, r *http.Request)
	bodies  []string
	header  http.Header
	seen    map[string]int
}

func receive(t *testing.T, secret string) *receiver {
	t.Helper()
	r := &receiver{seen: map[string]int{}}
	verifier, err := standardwebhooks.NewWebhook(secret)
	require.NoError(t, err)
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		body, err := io.ReadAll(request.Body)
		if err != nil || verifier.Verify(body, request.Header) != nil {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.seen[request.Header.Get("Webhook-Id")]++
		r.bodies, r.header = append(r.bodies, string(body)), request.Header.Clone()
		if r.respond != nil {
			r.respond(w, request)
		}
	}))
	t.Cleanup(r.Close)
	return r
}

func delivery(t *testing.T) sink.Delivery {
	t.Helper()
	f := events.DeployFact{
		Fact: events.FactCompleted, Sequence: 3, Provenance: events.ProvenanceObserved,
		Workload: events.Workload{ClusterUID: "c1", Namespace: "shop", Kind: "deployment", Name: "checkout"},
	}
	e, err := event.New(event.Attributes{
		Type:    "dev.cdevents.service.upgraded.0.3.0",
		Source:  "/lockstep/local/deploys",
		Subject: "s",
		ID:      "id-1",
		Time:    time.Unix(1, 0),
	}, f)
	require.NoError(t, err)
	return sink.Delivery{Key: "id-1", Fact: f, Event: e, Attempt: 1}
}

func open(
	t *testing.T, address, secrets string, change func(*webhook.Config, *webhook.Options, *sink.ClientOptions),
) *webhook.Sink {
	t.Helper()
	cfg := webhook.DefaultConfig()
	cfg.URL, cfg.SecretFile = config.URL(address), config.SecretValue(secrets)
	var options webhook.Options
	client := sink.ClientOptions{
		Limiter:     sink.NewLimiter(),
		NoRedirects: true,
		Timeout:     10 * time.Second,
		Network:     egress.Config{AllowPrivate: true},
	}
	if change != nil {
		change(&cfg, &options, &client)
	}
	options.Client = sink.NewClient(client)
	t.Cleanup(options.Client.CloseIdleConnections)
	return webhook.New(cfg, options)
}

func TestEventIsPostedAndSigned(t *testing.T) {
	t.Parallel()
	r := receive(t, secret(1))
	s := open(t, r.URL+"/hook", secret(0)+"\n"+secret(1),
		func(c *webhook.Config, _ *webhook.Options, _ *sink.ClientOptions) {
			c.Headers = map[string]string{"X-Team": "shop"}
		})
	d := delivery(t)
	require.NoError(t, s.Deliver(t.Context(), d))
	require.NoError(t, s.Deliver(t.Context(), d), "a second attempt has the same id")
	require.Equal(t, map[string]int{"id-1": 2}, r.seen)
	back, err := event.UnmarshalStructured([]byte(r.bodies[0]))
	require.NoError(t, err)
	require.Equal(t, d.Event.String(), back.String())
	require.Equal(t, "shop", r.header.Get("X-Team"))
	require.Equal(t, "application/cloudevents+json; charset=utf-8", r.header.Get("Content-Type"))

	thread, ok := s.Thread(d.Fact)
	require.True(t, ok)
	require.Equal(t, "c1/shop/deployment/checkout", thread)
}

func TestTemplateRendersTheBody(t *testing.T) {
	t.Parallel()
	r := receive(t, secret(0))
	s := open(t, r.URL, secret(0), func(_ *webhook.Config, o *webhook.Options, _ *sink.ClientOptions) {
		var err error
		o.Template, err = sink.ParseTemplate(`{"text": {{json (printf "%s/%s is %s" .Namespace .Name .Fact)}}}`, nil)
		require.NoError(t, err)
	})
	require.NoError(t, s.Deliver(t.Context(), delivery(t)))
	require.JSONEq(t, `{"text": "shop/checkout is completed"}`, r.bodies[0])
	require.Equal(t, "application/json", r.header.Get("Content-Type"))
}

func TestStatusDeterminesRetry(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]string{
		200: "ok",
		204: "ok",
		400: "permanent",
		401: "retry",
		404: "retry",
		408: "retry",
		410: "permanent",
		413: "permanent",
		422: "permanent",
		429: "after", 500: "retry", 503: "after", 302: "retry",
	} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			r := receive(t, secret(0))
			r.respond = func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", "7")
				w.Header().Set("Location", r.URL+"/elsewhere")
				w.WriteHeader(status)
			}
			s := open(t, r.URL, secret(0), nil)
			err := s.Deliver(t.Context(), delivery(t))
			var after *sink.RetryAfter
			switch want {
			case "ok":
				require.NoError(t, err)
			case "permanent":
				require.True(t, retry.IsPermanent(err))
			case "after":
				require.ErrorAs(t, err, &after)
				require.Equal(t, 7*time.Second, after.Delay)
			default:
				require.Error(t, err)
				require.False(t, retry.IsPermanent(err))
				require.NotErrorAs(t, err, &after)
			}
			require.Len(t, r.bodies, 1, "a redirect is not followed")
		})
	}
}

func TestWrongSecretIsRetried(t *testing.T) {
	t.Parallel()
	r := receive(t, secret(0))
	err := open(t, r.URL, secret(5), nil).Deliver(t.Context(), delivery(t))
	require.ErrorContains(t, err, "401")
	require.False(t, retry.IsPermanent(err))
}

func TestBrokenConnectionsAreRetried(t *testing.T) {
	t.Parallel()
	for name, behave := range map[string]func(net.Conn){
		"closed at once":      func(c net.Conn) { _ = c.Close() },
		"half closed":         func(c net.Conn) { _ = c.(*net.TCPConn).CloseWrite(); _, _ = io.Copy(io.Discard, c) },
		"incomplete response": func(c net.Conn) { _, _ = c.Write([]byte("HTTP/1.1 20")); _ = c.Close() },
		"no response":         func(c net.Conn) { _, _ = io.Copy(io.Discard, c) },
		"endless header": func(c net.Conn) {
			_, _ = c.Write([]byte("HTTP/1.1 200 OK\r\nX: "))
			_, _ = io.Copy(io.Discard, c)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			var serving sync.WaitGroup
			serving.Go(func() {
				for {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					serving.Go(func() { behave(conn); _ = conn.Close() })
				}
			})
			t.Cleanup(func() { _ = listener.Close(); serving.Wait() })
			s := open(t, "http://"+listener.Addr().String()+"/topsecret", secret(0),
				func(_ *webhook.Config, _ *webhook.Options, c *sink.ClientOptions) {
					c.Timeout = 300 * time.Millisecond
				})
			err = s.Deliver(t.Context(), delivery(t))
			require.Error(t, err)
			require.False(t, retry.IsPermanent(err))
			require.NotContains(t, err.Error(), "topsecret")
		})
	}
}

func TestPrivateAddressesAreRejected(t *testing.T) {
	t.Parallel()
	r := receive(t, secret(0))
	s := open(t, strings.Replace(r.URL, "127.0.0.1", "localhost", 1), secret(0),
		func(_ *webhook.Config, _ *webhook.Options, c *sink.ClientOptions) {
			c.Network = egress.Config{}
		})
	require.ErrorIs(t, s.Deliver(t.Context(), delivery(t)), egress.ErrPrivate)
	require.Empty(t, r.bodies)
}

func TestURLFileIsReadAtEachDelivery(t *testing.T) {
	t.Parallel()
	r := receive(t, secret(0))
	file := filepath.Join(t.TempDir(), "url")
	require.NoError(t, os.WriteFile(file, []byte("nonsense\n"), 0o600))
	s := open(t, "", secret(0), func(c *webhook.Config, _ *webhook.Options, _ *sink.ClientOptions) {
		c.URLFile = config.SecretFile(file)
	})
	require.ErrorContains(t, s.Deliver(t.Context(), delivery(t)), "not a URL")
	require.NoError(t, os.WriteFile(file, []byte(r.URL+"\n"), 0o600))
	require.NoError(t, s.Deliver(context.Background(), delivery(t)))
	require.Len(t, r.bodies, 1)
}

func TestInvalidConfigurationIsReported(t *testing.T) {
	t.Parallel()
	require.Len(t, webhook.Config{}.Missing(), 2)
	require.Empty(t, webhook.Config{}.Validate())
	require.Len(t, webhook.Config{URL: "ftp://x", SecretFile: config.SecretValue("whsec_?")}.Validate(), 2)
}
