package kube_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"lockstep.internal/services/relay/agent/kube"
)

// pipeListener is an in-memory listener.
type pipeListener chan net.Conn

func (p pipeListener) Accept() (net.Conn, error) {
	if conn, open := <-p; open {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (p pipeListener) Close() error { return nil }

func (p pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipeListener"} }

// The kubelet replaces the token in its file every hour.
func TestTokenFileIsReloaded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		token := filepath.Join(t.TempDir(), "token")
		require.NoError(t, os.WriteFile(token, []byte("old"), 0o600))
		dialled := make(pipeListener)
		api := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer new" {
				w.WriteHeader(http.StatusUnauthorized)
			}
		})}
		var serving sync.WaitGroup
		serving.Go(func() { _ = api.Serve(dialled) })
		dial := func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			dialled <- far
			return near, nil
		}
		cfg := &rest.Config{Host: "http://api", BearerTokenFile: token, Dial: dial}
		p, err := kube.New(cfg, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		require.ErrorContains(t, p.Check(t.Context()), "401")
		require.NoError(t, os.WriteFile(token, []byte("new"), 0o600))
		time.Sleep(time.Minute)
		require.NoError(t, p.Check(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, p.Run(ctx)) // closes its connections
		close(dialled)
		serving.Wait()
		require.NoError(t, api.Close())
	})
}

func TestUnresponsiveAPIServer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	})
	f := &fixture{t: t}
	f.start(&rest.Config{Host: "http://" + l.Addr().String()})
	status, body := f.caller().do("GET /", asUser)
	require.Equal(t, http.StatusBadGateway, status)
	require.Contains(t, body, "the API server did not respond to the agent")
	require.ErrorContains(t, f.proxy.Check(t.Context()), "does not respond")
	require.NoError(t, l.Close())
	accepting.Wait()
	status, body = f.caller().do("GET /", asUser)
	require.Equal(t, http.StatusServiceUnavailable, status)
	var unavailable metav1.Status
	require.NoError(t, json.Unmarshal([]byte(body), &unavailable))
	require.Equal(t, metav1.StatusReasonServiceUnavailable, unavailable.Reason)
	require.Contains(t, unavailable.Message, "cannot reach the API server of its cluster: dial tcp")
}
