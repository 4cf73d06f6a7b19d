package agent

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/retry"
	"lockstep.internal/libs/workspaceagent"
)

// testEditor is set in the processes of editors in these tests.
const testEditor = "LOCKSTEP_TEST_EDITOR"

// serveEditor is an editor: it writes the process and its tools, and ends on SIGTERM.
func serveEditor() {
	address := "127.0.0.1:" + os.Getenv(workspaceagent.EditorPortVariable)
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, "%d %s", os.Getpid(), os.Getenv(workspaceagent.EditorFolderVariable))
	})
	http.HandleFunc("/end", func(http.ResponseWriter, *http.Request) { os.Exit(3) })
	fmt.Fprintln(os.Stderr, http.ListenAndServe(address, nil))
	os.Exit(1)
}

func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	return listener.Addr().(*net.TCPAddr).Port
}

func TestEditorRunsBesideTheCommandAndIsStartedAgain(t *testing.T) {
	before := editorRetry
	editorRetry = retry.Policy{Min: time.Millisecond, Max: 10 * time.Millisecond}
	t.Cleanup(func() { editorRetry = before })
	t.Setenv(testEditor, "1")
	program, err := os.Executable()
	require.NoError(t, err)
	port := freePort(t)
	configure(t, func(c *workspaceagent.Config) {
		// Not with exec: the shell stays, and both must end.
		c.Editor = &workspaceagent.Editor{Line: `"` + program + `"; exit $?`, Port: port, Folder: "/tools"}
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, os.Getenv(workspaceagent.ConfigVariable), "127.0.0.1:0", nil, slog.New(slog.DiscardHandler))
	}()
	transport := &http.Transport{DisableKeepAlives: true}
	client := &http.Client{Transport: transport, Timeout: 10 * time.Second}
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	answer := func() string {
		response, err := client.Get(url)
		if err != nil {
			return ""
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return string(text)
	}
	var first string
	require.Eventually(t, func() bool { first = answer(); return first != "" }, 30*time.Second, 10*time.Millisecond)
	require.Contains(t, first, " /tools")
	_, err = client.Get(url + "end")
	require.Error(t, err)
	require.Eventually(t, func() bool {
		again := answer()
		return again != "" && again != first
	}, 30*time.Second, 10*time.Millisecond, "another process serves")
	cancel()
	require.NoError(t, <-ended)
	require.Eventually(t, func() bool { return answer() == "" }, 10*time.Second, time.Millisecond, "it ended, too")
}

func TestToolsAreCopied(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(from, "bin"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(from, "bin", "editor"), []byte("program"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(from, "readme"), []byte("text"), 0o644))
	require.NoError(t, os.Symlink("bin/editor", filepath.Join(from, "link")))
	log := filepath.Join(t.TempDir(), "log")
	for range 2 { // the second time over what the first has left
		require.NoError(t, os.WriteFile(filepath.Join(to, "left"), nil, 0o600))
		require.Zero(t, Program([]string{"copy", from, to}, io.Discard, io.Discard, log))
		require.NoFileExists(t, filepath.Join(to, "left"))
		info, err := os.Stat(filepath.Join(to, "bin", "editor"))
		require.NoError(t, err)
		require.NotZero(t, info.Mode()&0o111, "it can be executed")
		text, err := os.ReadFile(filepath.Join(to, "link"))
		require.NoError(t, err)
		require.Equal(t, "program", string(text))
		target, err := os.Readlink(filepath.Join(to, "link"))
		require.NoError(t, err)
		require.Equal(t, "bin/editor", target)
	}
	for _, wrong := range []string{filepath.Join(from, "missing"), filepath.Join(from, "readme")} {
		require.Equal(t, statusFailed, Program([]string{"copy", wrong, to}, io.Discard, io.Discard, log))
		reason, err := os.ReadFile(log)
		require.NoError(t, err)
		require.Contains(t, string(reason), wrong)
	}
	require.Error(t, Copy(from, filepath.Join(to, "missing")))
}
