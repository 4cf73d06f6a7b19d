package tunnel_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/tools/stack"
)

func TestWorkspaceIsEnteredThroughTheRelay(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.signedIn()
	_, body := b.Get(hello + "/page")
	require.Equal(t, "/page of 3000--hello.ws.test for https", body)

	echo := f.webSocket(b, hello+"/", hello)
	require.NoError(t, echo.Write(t.Context(), websocket.MessageText, []byte("echo")))
	_, text, err := echo.Read(t.Context())
	require.NoError(t, err)
	require.Equal(t, "echo", string(text))

	_, page := b.Get(terminal + "/")
	require.Contains(t, page, `<div id="terminal">`)
	shell := f.webSocket(b, terminal+"/.lockstep/terminal/socket", terminal)
	require.NoError(t, shell.Write(t.Context(), websocket.MessageBinary, []byte("echo $((6*7))\n")))
	for shown := ""; !strings.Contains(shown, "42"); {
		_, text, err := shell.Read(t.Context())
		require.NoError(t, err)
		shown += string(text)
	}

	client := f.sshClient()
	session, err := client.NewSession()
	require.NoError(t, err)
	sent := strings.Repeat("payload ", 1<<18)
	session.Stdin = strings.NewReader(sent)
	received, err := session.Output("cat")
	require.NoError(t, err)
	require.Equal(t, sent, string(received))
	forwarded, err := client.Dial("tcp", f.services["hello.ws-7-hello.svc:3000"])
	require.NoError(t, err)
	require.NoError(t, forwarded.Close())

	f.workspace(events.ActualStateStopped)
	_, _, err = echo.Read(t.Context())
	require.Error(t, err, "the workspace has stopped")
	ended := make(chan error, 1)
	go func() { ended <- client.Wait() }()
	select {
	case <-ended:
	case <-time.After(timeout):
		require.FailNow(t, "the SSH connection is still open")
	}
}

// TestTokenOfTheGatewayReachesWorkspacesOnly uses the token as somebody would who has taken over the gateway.
func TestTokenOfTheGatewayReachesWorkspacesOnly(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	token, err := os.ReadFile(f.dir + "/relay.token")
	require.NoError(t, err)
	ca, err := os.ReadFile(f.keys.CertFile)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(ca))
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
	}}
	send := func(method, path string, upgrade bool) (int, string) {
		request, err := http.NewRequestWithContext(t.Context(), method, "https://"+f.relay[stack.ListenerExternal]+path,
			strings.NewReader(`{"agentId":7}`))
		require.NoError(t, err)
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Authorization", "Bearer "+string(token))
		if upgrade {
			request.Header.Set("Connection", "Upgrade")
			request.Header.Set("Upgrade", "tcp")
		}
		response, err := client.Do(request)
		require.NoError(t, err)
		defer response.Body.Close()
		if response.StatusCode == http.StatusSwitchingProtocols {
			return response.StatusCode, ""
		}
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.StatusCode, string(body)
	}
	status, body := send(http.MethodGet, "/agents/7/tcp/hello.ws-7-hello:3000", true)
	require.Equal(t, http.StatusSwitchingProtocols, status, body)
	for path, want := range map[string]string{
		"/agents/7/kubernetes/version":                `service \"gateway\" has no rule for kubernetes`,
		"/agents/7/kubernetes/api/v1/secrets":         `service \"gateway\" has no rule for kubernetes`,
		"/agents/7/tcp/kubernetes":                    "not the name of a target",
		"/agents/7/tcp/shop":                          `service \"gateway\" has no rule for shop`,
		"/agents/7/http/shop/":                        `service \"gateway\" has no rule for shop`,
		"/agents/7/http/hello.ws-7-hello:3000/":       "not the name of a target",
		"/agents/7/tcp/kubernetes.default:443":        "namespace default is not of a workspace",
		"/agents/7/tcp/watcher.lockstep-agent-7:8081": "namespace lockstep-agent-7 is not of a workspace",
		"/agents/7/tcp/127.0.0.1:443":                 "not the name of a target",
		"/agents/7/tcp/kubernetes.default.svc:443":    "not the name of a target",
		"/agents/8/tcp/hello.ws-7-hello:3000":         "agent 8 does not exist",
	} {
		for _, upgrade := range []bool{false, true} {
			status, body := send(http.MethodGet, path, upgrade)
			require.GreaterOrEqual(t, status, http.StatusBadRequest, path)
			if upgrade {
				require.Contains(t, body, want, path)
			}
		}
	}
	status, body = send(http.MethodPost, "/lockstep.relay.v1.RelayService/GetPods", false)
	require.Equal(t, http.StatusForbidden, status, body)
}
