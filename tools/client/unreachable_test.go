package client

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

func TestUnreachableServersAreExplained(t *testing.T) {
	t.Parallel()
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte("<html>"))
	}))
	t.Cleanup(page.Close)
	absent := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(absent.Close)
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(secure.Close)
	for url, want := range map[string]string{
		"http://127.0.0.1:1":             "cannot reach 127.0.0.1:1: no program listens there",
		"http://nowhere.invalid":         "cannot reach nowhere.invalid: the host name nowhere.invalid is not known",
		secure.URL:                       "the authority of its certificate is not trusted",
		"https" + page.URL[len("http"):]: "it does not use TLS: the URL must begin with http://",
		page.URL:                         "is not a Lockstep service of this version",
		absent.URL:                       "is not a Lockstep service of this version",
	} {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		api := New(client, url, "token")
		_, err := api.Directory.WhoAmI(t.Context(), connect.NewRequest(&statev1.WhoAmIRequest{}))
		require.True(t, fault.Is(err, errcode.Unavailable), "%s: %v", url, err)
		require.Contains(t, fault.From(err).Message, want, url)
		stream, err := api.Workspaces.WatchWorkspaces(t.Context(), connect.NewRequest(&statev1.WatchWorkspacesRequest{}))
		if err == nil {
			require.False(t, stream.Receive())
			err = stream.Err()
			_ = stream.Close() // it has failed
		}
		require.Contains(t, fault.From(err).Message, want, url)
	}
}
