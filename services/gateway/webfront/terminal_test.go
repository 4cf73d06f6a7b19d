package webfront

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"lockstep.internal/services/gateway/access"
)

const (
	terminalHost   = "https://22--hello.ws.test"
	terminalSocket = "wss://22--hello.ws.test/.lockstep/terminal/socket"
)

// readUntil returns what the terminal shows, until the text is in it.
func readUntil(t *testing.T, conn *websocket.Conn, text string) string {
	t.Helper()
	var shown strings.Builder
	for !strings.Contains(shown.String(), text) {
		kind, data, err := conn.Read(t.Context())
		require.NoError(t, err, shown.String())
		require.Equal(t, websocket.MessageBinary, kind)
		shown.Write(data)
	}
	return shown.String()
}

func TestTerminalIsAShellOfTheSizeOfThePage(t *testing.T) {
	f := newFixture(t, nil)
	f.startAgent()
	b := f.signedIn()
	_, page := b.Get(terminalHost + "/")
	require.Contains(t, page, `<div id="terminal">`)
	conn := f.webSocket(b, terminalSocket, terminalHost)
	require.NoError(t, conn.Write(t.Context(), websocket.MessageText, []byte(`{"columns":91,"rows":33}`)))
	require.NoError(t, conn.Write(t.Context(), websocket.MessageBinary, []byte("stty size; echo $((6*7))$TERM\n")))
	require.Contains(t, readUntil(t, conn, "42xterm-256color"), "33 91")
	require.NotEmpty(t, f.activity.Take())
	require.NoError(t, conn.Write(t.Context(), websocket.MessageBinary, []byte("exit\n")))
	err := readToEnd(t, conn)
	require.Equal(t, websocket.StatusNormalClosure, websocket.CloseStatus(err))
	require.ErrorContains(t, err, "the shell has ended")
}

// readToEnd returns why the terminal has ended.
func readToEnd(t *testing.T, conn *websocket.Conn) error {
	t.Helper()
	for {
		if _, _, err := conn.Read(t.Context()); err != nil {
			return err
		}
	}
}

func TestTerminalEndsWithTheRightAndWithTheSession(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(*fixture, *browser)
		want string
	}{
		"blocked": {func(f *fixture, _ *browser) { f.SetBlocked(owner, true) }, access.ErrRevoked.Error()},
		"stopped": {func(f *fixture, _ *browser) {
			f.Set(access.Entry{ID: "id", Name: "hello", OwnerID: owner})
		}, access.ErrStopped.Error()},
		"signed out": {func(_ *fixture, b *browser) {
			b.Do(b.Request(http.MethodPost, "https://sign-in.ws.test/sign-out"))
		}, "you have signed out"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.startAgent()
			b := f.signedIn()
			b.Get(terminalHost + "/")
			conn := f.webSocket(b, terminalSocket, terminalHost)
			require.NoError(t, conn.Write(t.Context(), websocket.MessageBinary, []byte("echo $((6*7))\n")))
			readUntil(t, conn, "42")
			c.end(f, b)
			err := readToEnd(t, conn)
			require.ErrorContains(t, err, c.want)
		})
	}
}

// TestTerminalWhoseAgentEndsFirstSaysThatTheWorkspaceStops is about a stop that the gateway learns of a moment later.
func TestTerminalWhoseAgentEndsFirstSaysThatTheWorkspaceStops(t *testing.T) {
	f := newFixture(t, nil)
	f.startAgent()
	b := f.signedIn()
	b.Get(terminalHost + "/")
	conn := f.webSocket(b, terminalSocket, terminalHost)
	require.NoError(t, conn.Write(t.Context(), websocket.MessageBinary, []byte("echo $((6*7)); kill -9 $$\n")))
	readUntil(t, conn, "42")
	f.Set(access.Entry{ID: "id", Name: "hello", OwnerID: owner})
	require.ErrorContains(t, readToEnd(t, conn), access.ErrStopped.Error())
}

func TestPagesOfTheWorkspaceDoNotReachTheTerminal(t *testing.T) {
	f := newFixture(t, nil)
	f.startAgent()
	b := f.signedIn()
	b.Get(terminalHost + "/") // signed in there, too
	for _, origin := range []string{hello, "https://22--other.ws.test", "https://evil.org", ""} {
		_, err := f.dialWebSocket(b, terminalSocket, origin)
		require.ErrorContains(t, err, "403", origin)
	}
	_, err := f.dialWebSocket(b, "wss://3000--hello.ws.test/.lockstep/terminal/socket", hello)
	require.ErrorContains(t, err, "404")
	response, _ := b.WithoutRedirects().Get(hello + "/.lockstep/terminal")
	require.Equal(t, terminalHost+"/.lockstep/terminal", response.Header.Get("Location"))
	response, _ = b.Do(b.Request(http.MethodGet, terminalHost+"/.lockstep/terminal", "Origin", hello))
	require.Equal(t, http.StatusForbidden, response.StatusCode)
}

func TestTerminalNeedsTheRightToEverything(t *testing.T) {
	f := newFixture(t, nil)
	b := f.signedIn()
	f.Set(access.Entry{
		ID: "id", Name: "hello", OwnerID: owner + 1, Running: true, Shares: []access.Share{{UserID: owner, Port: 22}},
	})
	response, _ := b.Get(terminalHost + "/.lockstep/terminal")
	require.Equal(t, http.StatusNotFound, response.StatusCode)
	f.Set(access.Entry{ID: "id", Name: "hello", OwnerID: owner, State: "stopped"})
	_, body := b.Get(terminalHost + "/.lockstep/terminal")
	require.Contains(t, body, `<strong id="state">stopped</strong>`)
}

func TestTerminalPageRunsItsFilesOnly(t *testing.T) {
	f := newFixture(t, nil)
	b := f.signedIn()
	response, page := b.Get(terminalHost + "/.lockstep/terminal")
	policy := response.Header.Get("Content-Security-Policy")
	require.Contains(t, policy, "script-src 'self';")
	require.NotContains(t, page, "<script>")
	for _, file := range regexp.MustCompile(`(?:src|href)="(/[^"]+)"`).FindAllStringSubmatch(page, -1) {
		response, body := b.Get(terminalHost + file[1])
		require.Equal(t, http.StatusOK, response.StatusCode, file[1])
		require.NotEmpty(t, body)
	}
}

func TestTerminalSaysWhyThereIsNoShell(t *testing.T) {
	f := newFixture(t, nil)
	f.startAgent()
	f.agent = "127.0.0.1:1"
	b := f.signedIn()
	b.Get(terminalHost + "/")
	conn := f.webSocket(b, terminalSocket, terminalHost)
	err := readToEnd(t, conn)
	require.ErrorContains(t, err, "does not answer: try again")
}

func TestSizeThatIsNoneEndsTheTerminal(t *testing.T) {
	for _, message := range []string{`{"columns":0,"rows":1}`, `{"columns":1,"rows":5000}`, "none"} {
		f := newFixture(t, nil)
		f.startAgent()
		b := f.signedIn()
		b.Get(terminalHost + "/")
		conn := f.webSocket(b, terminalSocket, terminalHost)
		require.NoError(t, conn.Write(t.Context(), websocket.MessageText, []byte(message)))
		err := readToEnd(t, conn)
		require.ErrorContains(t, err, "a size that is none", message)
	}
}
