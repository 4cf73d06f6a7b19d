package gateway_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"lockstep.internal/services/gateway"
)

const terminalHost = "https://22--hello.ws.test"

// withAgent reaches the agent of the workspace.
func withAgent(cfg gateway.Config, agent string) gateway.Config {
	cfg.Workspaces.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, network, agent)
	}
	return cfg
}

func TestTerminalInTheBrowser(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := f.start(withAgent(f.config(), f.startAgent()))
	f.workspace(nil)
	b := r.browser("")
	r.openLink(b)
	_, page := b.Get(terminalHost + "/.lockstep/terminal")
	require.Contains(t, page, `<div id="terminal">`)

	// Behind the proxy that terminates TLS.
	header := http.Header{"Origin": {terminalHost}}
	for _, c := range b.Client.Jar.Cookies(&url.URL{Scheme: "https", Host: "22--hello.ws.test", Path: "/"}) {
		header.Add("Cookie", c.Name+"="+c.Value)
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, network, r.addresses["web"])
	}}
	defer transport.CloseIdleConnections()
	conn, response, err := websocket.Dial(t.Context(), "ws://22--hello.ws.test/.lockstep/terminal/socket",
		&websocket.DialOptions{HTTPClient: &http.Client{Transport: transport}, HTTPHeader: header})
	if response != nil && response.Body != nil {
		defer response.Body.Close()
	}
	require.NoError(t, err)
	defer conn.CloseNow()
	require.NoError(t, conn.Write(t.Context(), websocket.MessageBinary, []byte("echo $((6*7))\n")))
	var shown strings.Builder
	for !strings.Contains(shown.String(), "42") {
		_, data, err := conn.Read(t.Context())
		require.NoError(t, err, shown.String())
		shown.Write(data)
	}
	// A gateway that stops ends terminals at once, and says why.
	go r.end()
	for err == nil {
		_, _, err = conn.Read(t.Context())
	}
	require.ErrorContains(t, err, "the gateway restarts: connect again")
}

var field = regexp.MustCompile(`name="([^"]+)" value="([^"]*)"`)

func TestCommandLineGetsATokenOfThePerson(t *testing.T) {
	t.Parallel()
	const verifier = "the verifier of the command line"
	f := newFixture(t)
	r := f.start(f.config())
	f.workspace(nil)
	b := r.browser("")
	r.openLink(b)
	challenge := sha256.Sum256([]byte(verifier))
	_, page := b.Get(signInHost + "/cli?" + url.Values{
		"port": {"40123"}, "challenge": {base64.RawURLEncoding.EncodeToString(challenge[:])}, "state": {"S"},
		"name": {"laptop"},
	}.Encode())
	require.Contains(t, page, "Let the command line on laptop act as user-9?")
	values := url.Values{}
	for _, input := range field.FindAllStringSubmatch(page, -1) {
		values.Set(input[1], input[2])
	}
	request := b.Request(http.MethodPost, signInHost+"/cli", "Origin", signInHost,
		"Content-Type", "application/x-www-form-urlencoded")
	request.Body = io.NopCloser(strings.NewReader(values.Encode()))
	response, body := b.WithoutRedirects().Do(request)
	require.Equal(t, http.StatusSeeOther, response.StatusCode, body)
	to, err := url.Parse(response.Header.Get("Location"))
	require.NoError(t, err)
	raw, err := json.Marshal(map[string]string{"code": to.Query().Get("code"), "verifier": verifier})
	require.NoError(t, err)
	request = b.Request(http.MethodPost, signInHost+"/cli/token")
	request.Body = io.NopCloser(strings.NewReader(string(raw)))
	response, body = b.Do(request)
	require.Equal(t, http.StatusOK, response.StatusCode, body)
	require.Contains(t, body, `"token":"lsp_command line on laptop"`)
	f.mu.Lock()
	defer f.mu.Unlock()
	require.Equal(t, int64(owner), f.tokens["lsp_command line on laptop"], "it is the person's own")
}
