package gateway_test

import (
	_ "embed"
	"fmt"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/gateway/address"
	"lockstep.internal/services/gateway/signin/signintest"
)

// People whom the provider knows.
const (
	ownerLogin = "emmy"
	guestLogin = "lise"
)

// echoPage is a page of the program in a workspace, with a WebSocket.
//
//go:embed testdata/echo.html
var echoPage string

// serveProject serves a git repository with a file, and returns its address.
func serveProject(t testing.TB) string {
	t.Helper()
	git, err := exec.LookPath("git")
	require.NoError(t, err, "this test needs git: on Debian, apt-get install git")
	dir := t.TempDir()
	repository := filepath.Join(dir, "notes.git")
	require.NoError(t, os.Mkdir(repository, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(repository, "README.md"), []byte("# Notes on invariants\n"), 0o600))
	for _, arguments := range [][]string{
		{"-c", "init.defaultBranch=main", "init", "--quiet"},
		{"add", "README.md"},
		{"-c", "user.name=Emmy", "-c", "user.email=emmy@localhost", "commit", "--quiet", "-m", "Begin"},
	} {
		command := exec.CommandContext(t.Context(), git, arguments...)
		command.Dir, command.Env = repository, append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_NOSYSTEM=1")
		output, err := command.CombinedOutput()
		require.NoError(t, err, "%s", output)
	}
	server := httptest.NewServer(&cgi.Handler{
		Path: git, Args: []string{"http-backend"}, Env: []string{"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1"},
	})
	t.Cleanup(server.Close)
	return server.URL + "/notes.git"
}

const browserDevfile = `schemaVersion: 2.2.0
metadata:
  name: notes
components:
- name: tools
  container:
    image: %s
    endpoints:
    - name: web
      targetPort: 8080
projects:
- name: notes
  git:
    remotes:
      origin: %s
`

// signIn enters login and password at the provider.
func (t *tab) signIn(login string) {
	t.t.Helper()
	t.await(`document.querySelector("#username") !== null`)
	t.enter("#username", login)
	t.enter("#password", signintest.Password)
	t.screenshot("gateway-sign-in-" + login)
	t.click("button")
}

// awaitPrompt waits until the shell in the terminal is ready.
func (t *tab) awaitPrompt() {
	t.t.Helper()
	t.await(`document.querySelector(".xterm-rows").textContent.trim() !== ""`)
}

// run runs a command in the terminal, and waits for its output.
func (t *tab) run(command, output string) {
	t.t.Helper()
	t.typeKeys(command + "\r")
	t.awaitText(".xterm-rows", output)
}

// TestPersonWorksInTheBrowser is what a person sees, from the sign-in to the sign-out, in a real browser.
func TestPersonWorksInTheBrowser(t *testing.T) {
	s := shared.Parallel(t)
	browsers := startChromium(t, s)
	owner := newPerson(t, s, ownerLogin)
	s.NewUser(guestLogin, s.ProjectID, statev1.Role_ROLE_DEVELOPER)
	devfile := filepath.Join(t.TempDir(), "devfile.yaml")
	text := fmt.Sprintf(browserDevfile, fixture.GoodImage, serveProject(t))
	require.NoError(t, os.WriteFile(devfile, []byte(text), 0o600))
	owner.cli.OK("ws", "create", "notes", "--devfile", devfile, "--wait")
	owner.cli.OK("ws", "stop", "notes", "--wait")
	terminalURL := s.WorkspaceURL("notes", address.TerminalPort) + "/"

	// A stopped workspace: its page starts it, and opens the terminal.
	terminal := browsers.person()
	terminal.open(terminalURL)
	terminal.signIn(ownerLogin)
	terminal.awaitText("#state", "stopped")
	terminal.screenshot("gateway-stopped")
	terminal.click("button")
	// It may run before the page has told that it starts.
	terminal.await(`document.querySelector("#starts")?.hidden === false || document.querySelector(".xterm-rows") !== null`)
	terminal.screenshot("gateway-starting")
	terminal.awaitPrompt()
	terminal.run("ls", "notes")
	terminal.run("head -n 1 notes/README.md", "# Notes on invariants")
	terminal.screenshot("gateway-terminal")
	terminal.do(chromedp.EmulateViewport(700, 400))
	terminal.await(`terminal.cols < 90`)
	size, err := chromedp.Run(terminal.ctx, chromedp.Evaluate[string](`terminal.rows + " " + terminal.cols`))
	require.NoError(t, err)
	terminal.run("stty size", size)
	terminal.do(chromedp.EmulateViewport(viewWidth, viewHeight))

	// A program of the workspace with a WebSocket.
	owner.serve("notes")
	echo := terminal.another()
	echo.open(s.WorkspaceURL("notes", webPort) + "/echo")
	echo.awaitText("#connection", "connected")
	echo.enter("#text", "energy is conserved\r")
	echo.awaitText("#answers", "energy is conserved")
	echo.screenshot("gateway-websocket")

	// Another person, whom the workspace is shared with, loses it.
	visitor := browsers.person()
	visitor.open(terminalURL)
	visitor.signIn(guestLogin)
	visitor.awaitText("h1", "There is no such workspace, or you may not enter it")
	visitor.screenshot("gateway-refused")
	owner.cli.OK("ws", "share", "notes", "--with", guestLogin)
	awaitEntry(visitor, terminalURL)
	visitor.awaitPrompt()
	visitor.run("head -n 1 notes/README.md", "# Notes on invariants")
	watching := visitor.another()
	watching.open(s.WorkspaceURL("notes", webPort) + "/echo")
	watching.awaitText("#connection", "connected")
	owner.cli.OK("ws", "unshare", "notes", "--with", guestLogin)
	revoked := time.Now()
	visitor.awaitText("#reason", "the access to the workspace was revoked")
	watching.awaitText("#connection", "the connection has ended")
	t.Logf("both connections were seen to end %s after `ws unshare`", time.Since(revoked).Round(time.Millisecond))
	visitor.screenshot("gateway-revoked")
	visitor.click("#again")
	visitor.awaitText("h1", "There is no such workspace, or you may not enter it")

	// The workspace stops.
	owner.cli.OK("ws", "stop", "notes", "--wait")
	terminal.awaitText("#reason", "the workspace has stopped")
	terminal.click("#again")
	terminal.awaitText("#state", "stopped")

	// Signing out ends the session on all hosts: the page of the workspace asks to sign in again.
	leaving := terminal.another()
	leaving.open(s.GatewayURL())
	leaving.awaitText("h1", "Signed in as "+ownerLogin)
	leaving.screenshot("gateway-signed-in")
	leaving.click("button")
	leaving.awaitText("h1", "Signed out")
	leaving.screenshot("gateway-signed-out")
	terminal.await(`document.querySelector("#username") !== null`)

	for _, checked := range []*tab{terminal, echo, visitor, watching, leaving} {
		checked.requireNoErrors()
	}
}

// awaitEntry opens an address until the person may enter: a share counts at the gateway a moment later.
func awaitEntry(t *tab, address string) {
	t.t.Helper()
	require.Eventually(t.t, func() bool {
		t.open(address)
		title, err := chromedp.Run(t.ctx, chromedp.Title())
		return err == nil && !strings.HasPrefix(title, "There is no such workspace")
	}, fixture.Timeout, fixture.PollInterval)
}
