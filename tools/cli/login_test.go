package cli

import (
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/tools/client"
)

func TestLoginWithoutServerOrGatewayIsRefused(t *testing.T) {
	t.Parallel()
	var out, errs strings.Builder
	code := Run(t.Context(), []string{
		"--client", filepath.Join(t.TempDir(), "client.yaml"), "--server=", "login", "--no-browser",
	}, &out, &errs, "test")
	require.NotZero(t, code)
	require.Contains(t, errs.String(), "lockstep login --server URL")
}

func TestLoginStoresATokenAndLogoutRevokesIt(t *testing.T) {
	t.Parallel()
	f := setupEntering(t)
	shown, notes := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		ended <- Run(t.Context(), []string{
			"--client", f.clientFile(), "--server", f.api, "--gateway-ca-file", filepath.Join(f.folder, "ca.crt"),
			"login", "--no-browser",
		}, io.Discard, notes, "test")
		_ = notes.Close()
	}()
	page := readLoginPage(t, shown)
	output := make(chan string, 1)
	go func() {
		rest, _ := io.ReadAll(shown)
		output <- string(rest)
	}()
	// The browser shows the page, and then follows its redirection.
	response, err := f.gateway.Client().Get(page.String())
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	query := page.Query()
	callback := "http://127.0.0.1:" + query.Get("port") + "/callback?"
	for _, answer := range []struct {
		state string
		want  int
	}{{"forged", http.StatusBadRequest}, {query.Get("state"), http.StatusOK}} {
		response, err := http.Get(callback + url.Values{"code": {"the-code"}, "state": {answer.state}}.Encode())
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, answer.want, response.StatusCode)
	}
	closeIdle()
	require.Zero(t, <-ended, "%s", <-output)
	stored, err := client.Read(f.clientFile())
	require.NoError(t, err)
	require.Equal(t, f.api, stored.Server)
	require.Equal(t, query.Get("name"), stored.LoginName)
	info, err := os.Stat(stored.TokenFile)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	code, stdout, stderr := f.run(t, "ws", "open", "hello", "--no-browser")
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "hello-0-"+gatewayToken)

	code, _, stderr = f.run(t, "logout")
	require.Zero(t, code, stderr)
	require.Equal(t, []int64{2}, f.revoked)
	require.NoFileExists(t, stored.TokenFile)
	code, _, stderr = f.run(t, "logout")
	require.Equal(t, 8, code)
	require.Contains(t, stderr, "has no login")
}

// readLoginPage reads the address that the command prints.
func readLoginPage(t *testing.T, notes io.Reader) *url.URL {
	t.Helper()
	var text []byte
	one := make([]byte, 1)
	for strings.Count(string(text), "\n") < 2 {
		_, err := notes.Read(one)
		require.NoError(t, err, "%s", text)
		text = append(text, one...)
	}
	page, err := url.Parse(strings.Split(string(text), "\n")[1])
	require.NoError(t, err)
	require.Equal(t, "/cli", page.Path)
	return page
}
