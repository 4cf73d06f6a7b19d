package gateway_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/tools/stack"
)

// TestGatewayIsKilledAndStartsAgain shows that what people were given before still counts.
func TestGatewayIsKilledAndStartsAgain(t *testing.T) {
	s := shared.Exclusive(t)
	owner := newPerson(t, s, "survivor")
	owner.create("survives")
	owner.writeConfig("survives")
	owner.awaitSSH("survives", "echo before > file; cat file", "before\n")
	b := owner.signIn("survives")
	status, body := b.get(s.WorkspaceURL("survives", webPort))
	require.Equal(t, http.StatusOK, status, body)
	conn := b.webSocket(s.WorkspaceURL("survives", webPort))

	require.NoError(t, s.Kill(stack.Gateway))
	requireEnds(t, conn)
	require.NoError(t, s.StartService(t.Context(), stack.Gateway))

	owner.awaitSSH("survives", "cat file", "before\n")
	status, body = b.get(s.WorkspaceURL("survives", webPort))
	require.Equal(t, http.StatusOK, status, "the session counts: %s", body)
	b.webSocket(s.WorkspaceURL("survives", webPort))
}

func TestOwnerEntersWithOpenSSH(t *testing.T) {
	s := shared.Parallel(t)
	owner := newPerson(t, s, "ada")
	owner.create("entered")
	owner.writeConfig("entered")
	owner.awaitSSH("entered", "echo $((20 + 3))", "23\n") // by key
	require.Equal(t, "23\n", owner.cli.OK("ws", "ssh", "entered", "--", "echo $((20 + 3))"), "by token")
	code, _, _ := owner.cli.Run("ws", "ssh", "entered", "--", "exit 7")
	require.Equal(t, 7, code)

	content := strings.Repeat("line\n", 100_000)
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	output, err := owner.openSSH("scp", file, "entered.lockstep:copied")
	require.NoError(t, err, output)
	owner.cli.OK("ws", "cp", "entered:copied", file+".back")
	back, err := os.ReadFile(file + ".back")
	require.NoError(t, err)
	require.Equal(t, content, string(back))

	server := httptest.NewServer(http.HandlerFunc(serve)) // on the loopback address, as a program of the workspace
	defer server.Close()
	_, port, _ := strings.Cut(server.Listener.Addr().String(), ":")
	forward := owner.cli.Start("ws", "port-forward", "entered", "18474:"+port)
	forward.AwaitLine("127.0.0.1:18474 forwards to port " + port)
	require.Eventually(t, func() bool {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1:18474", nil)
		require.NoError(t, err)
		request.Close = true
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return false // OpenSSH does not listen yet
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		return err == nil && strings.HasPrefix(string(body), "hello from 127.0.0.1:18474")
	}, fixture.Timeout, fixture.PollInterval)
	require.Zero(t, forward.Interrupt())
}

func TestForeignPersonIsRefusedUntilTheWorkspaceIsShared(t *testing.T) {
	s := shared.Parallel(t)
	owner, other := newPerson(t, s, "owner"), newPerson(t, s, "guest")
	owner.create("mine")
	other.create("others")
	other.writeConfig("others")
	other.awaitSSH("others", "true", "") // the gateway knows the key
	address := s.WorkspaceURL("mine", webPort)

	// The configuration has the gateway's address and host key: only the name is another one.
	output, err := other.openSSH("ssh", "-l", "mine", "others.lockstep", "true")
	require.Error(t, err)
	require.NotContains(t, output, "owner", "nothing is said about the workspace")
	b := other.signIn("others")
	status, body := b.get(address)
	require.Equal(t, http.StatusNotFound, status, body)

	owner.cli.OK("ws", "share", "mine", "--with", other.name, "--port", "8080")
	require.Eventually(t, func() bool {
		status, body = b.get(address)
		return status == http.StatusOK
	}, fixture.Timeout, fixture.PollInterval)
	require.Contains(t, body, "cookies 0", "the gateway's cookies do not reach the program")
	conn := b.webSocket(address)
	_, err = other.openSSH("ssh", "-l", "mine", "others.lockstep", "true")
	require.Error(t, err, "a share of a port is not one of SSH")

	owner.cli.OK("ws", "unshare", "mine", "--with", other.name)
	requireEnds(t, conn)
	status, body = b.get(address)
	require.Equal(t, http.StatusNotFound, status, body)
}

func TestReplicasShareSessionsAndRevocations(t *testing.T) {
	s := shared.Parallel(t)
	owner, other := newPerson(t, s, "grace"), newPerson(t, s, "joan")
	owner.create("replicated")
	second, err := s.AddReplica(t.Context(), stack.Gateway)
	require.NoError(t, err)
	owner.cli.OK("ws", "share", "replicated", "--with", other.name, "--port", "8080")
	other.create("another")
	b := other.signIn("another")
	there := newBrowser(t, s, second, b.client.Jar)
	address := s.WorkspaceURL("replicated", webPort)
	for _, at := range []*browser{b, there} {
		require.Eventually(t, func() bool {
			status, _ := at.get(address)
			return status == http.StatusOK
		}, fixture.Timeout, fixture.PollInterval)
	}
	first, last := b.webSocket(address), there.webSocket(address)
	owner.cli.OK("ws", "unshare", "replicated", "--with", other.name)
	requireEnds(t, first)
	requireEnds(t, last)
}
