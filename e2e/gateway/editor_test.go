package gateway_test

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/workspaceagent"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/gateway/address"
)

const (
	// editorVariable lets the program of the test be the editor of a workspace.
	editorVariable = "LOCKSTEP_E2E_EDITOR"
	editorPort     = 18475
)

// runEditor serves a page with a WebSocket at all addresses until it is killed.
func runEditor() error {
	server := &http.Server{
		Addr:              net.JoinHostPort("", os.Getenv(workspaceagent.EditorPortVariable)),
		ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.URL.Path = "/echo"
			if r.Header.Get("Upgrade") != "" {
				r.URL.Path = "/"
			}
			serve(w, r)
		}),
	}
	return server.ListenAndServe()
}

// TestEditorOpensInTheBrowser shows the link of `ws open --editor`, and that an editor cannot be shared alone.
func TestEditorOpensInTheBrowser(t *testing.T) {
	s := shared.Parallel(t)
	browsers := startChromium(t, s)
	owner := newPerson(t, s, "maria")
	s.NewUser("anna", s.ProjectID, statev1.Role_ROLE_DEVELOPER)
	program, err := os.Executable()
	require.NoError(t, err)
	port := strconv.Itoa(editorPort)
	s.CLI().OK("template", "set", "with-editor", "--image", fixture.GoodImage, "--editor-port", port,
		"--editor-command", fmt.Sprintf("%s=1 exec '%s'", editorVariable, program))
	owner.cli.OK("ws", "create", "edited", "--template", "with-editor", "--wait")

	editor := browsers.person()
	editor.open(strings.TrimSpace(owner.cli.OK("ws", "open", "edited", "--editor", "--no-browser")))
	editor.awaitText("h1", "Sign in as user-") // an access token has no name
	editor.screenshot("gateway-link")
	editor.click("button")
	editor.await(fmt.Sprintf(`location.origin === "%s"`, s.WorkspaceURL("edited", editorPort)))
	// The agent starts the editor beside the workspace, so it may not answer yet.
	require.Eventually(t, func() bool {
		editor.open(s.WorkspaceURL("edited", editorPort))
		return editor.is(`document.title === "Echo"`)
	}, fixture.Timeout, fixture.PollInterval)
	editor.awaitText("#connection", "connected")
	editor.enter("#text", "ideals\r")
	editor.awaitText("#answers", "ideals")

	code, _, message := owner.cli.Run("ws", "share", "edited", "--with", "anna", "--port", port)
	require.NotZero(t, code)
	require.Contains(t, message, "port "+port+" is the editor of workspace \"edited\"")
	terminal := editor.another()
	terminal.open(s.WorkspaceURL("edited", address.TerminalPort))
	terminal.awaitPrompt() // the same session
	editor.requireNoErrors()
	terminal.requireNoErrors()
}
