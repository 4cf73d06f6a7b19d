package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientauth "k8s.io/client-go/pkg/apis/clientauthentication/v1"
	"k8s.io/client-go/tools/clientcmd"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/stack"
)

func TestListRelaysAndConnections(t *testing.T) {
	t.Parallel()
	b := newRelayFixture(t)
	_, note := b.runs(adminID, "relay", "agents")
	require.Contains(t, note, "nothing found")
	b.startAgent()
	for _, args := range [][]string{{"relay", "agents"}, {"relay", "agents", "7"}, {"relay", "agents", "--project", "3"}} {
		out, _ := b.runs(readerID, args...)
		require.Regexp(t, `(?m)^east +\d+ +lockstep/agent-0 `, out)
	}
	_, note = b.runs(adminID, "relay", "agents", "--project", "4")
	require.Contains(t, note, "nothing found")
	require.Contains(t, b.fails(5, outsiderID, "relay", "agents", "east"), "agent 7 does not exist",
		"a user without a role")
	out, _ := b.runs(readerID, "relay", "list", "-o", "json")
	require.Contains(t, out, `"url": "ws://`+b.relay["internal"])
	out, _ = b.runs(readerID, "relay", "pods", "east")
	require.Regexp(t, `NAMESPACE +NAME\nshop +lockstep-user-6\nshop +web-0\n`, out)
	require.Contains(t, b.fails(5, outsiderID, "relay", "pods", "7"), "does not exist")
}

// counter starts a target that responds with the number of received bytes.
func counter(t *testing.T) events.RelayTarget {
	t.Helper()
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			n, _ := io.Copy(io.Discard, conn)
			_, _ = io.WriteString(conn, strconv.FormatInt(n, 10)+" bytes")
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
	return events.RelayTarget{Name: "counter", Address: listener.Addr().String()}
}

func TestForwardConnections(t *testing.T) {
	t.Parallel()
	unreachable := events.RelayTarget{Name: "unreachable", Address: "127.0.0.1:1"}
	b := newRelayFixture(t, counter(t), unreachable)
	b.startAgent()
	require.Contains(t, b.fails(4, readerID, "relay", "forward", "east", "counter", "--stdio"),
		"needs the role developer")
	require.Contains(t, b.fails(13, adminID, "relay", "forward", "east", "unreachable", "--stdio"), "cannot be reached")
	require.Contains(t, b.fails(4, adminID, "relay", "forward", "east", "other", "--stdio"), `has no target "other"`)
	require.Contains(t, b.fails(5, outsiderID, "relay", "forward", "east", "counter"), "does not exist")
	require.Contains(t, b.fails(5, adminID, "relay", "forward", "east", "other"),
		`agent "east" has no target "other": its targets are counter, unreachable`)
	require.Contains(t, b.fails(2, adminID, "relay", "forward", "east", "counter", "--listen", "nonsense"),
		`--listen "nonsense" must be HOST:PORT`)

	address, out, stop := b.forward("counter")
	sent := strings.Repeat("x", 3<<20)
	require.Equal(t, strconv.Itoa(len(sent))+" bytes", exchange(t, address, sent))
	require.Equal(t, "0 bytes", exchange(t, address, ""))
	open, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer open.Close()
	_, err = io.WriteString(open, "not the end")
	require.NoError(t, err)
	require.Zero(t, stop(), "Ctrl-C closes open connections, too: %s", out)
	_, err = io.ReadAll(open)
	require.Error(t, err, "the response must not look complete")

	address, out, _ = b.forward("unreachable")
	if refused, err := net.Dial("tcp", address); err == nil { // otherwise the reset arrived first
		defer refused.Close()
		_, err = io.ReadAll(refused)
		require.Error(t, err)
	}
	require.Eventually(t, func() bool { return strings.Contains(out.String(), "cannot be reached") }, processTimeout,
		10*time.Millisecond)
}

// exchange sends text, half-closes, and returns the response.
func exchange(t *testing.T, address, text string) string {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, text)
	require.NoError(t, err)
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	response, err := io.ReadAll(conn)
	require.NoError(t, err)
	return string(response)
}

// forward starts lockstep relay forward and returns its address.
func (b *relayFixture) forward(target string) (address string, out *output, stop func() int) {
	b.t.Helper()
	out = &output{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan int, 1)
	line := append([]string{"--client", filepath.Join(b.dir, "none.yaml")},
		b.as(adminID, "relay", "forward", "east", target)...)
	go func() { done <- Run(ctx, line, out, out, "test") }()
	ended := false
	stop = func() int {
		cancel()
		if ended {
			return 0
		}
		ended = true
		return <-done
	}
	b.t.Cleanup(func() { stop() })
	require.Eventually(b.t, func() bool {
		var found bool
		address, _, found = strings.Cut(out.String(), " forwards to "+target)
		return found
	}, processTimeout, 10*time.Millisecond, out)
	return address, out, stop
}

func TestForwardStandardInputAndOutput(t *testing.T) {
	t.Parallel()
	b := newRelayFixture(t, counter(t))
	b.startAgent()
	relay, err := client.New(http.DefaultClient, b.flags[1], strconv.Itoa(adminID)).Relay(b.flags[3], b.flags[5])
	require.NoError(t, err)
	t.Cleanup(relay.Close)
	var out, errs bytes.Buffer
	a := &app{stdout: &out, stderr: &errs}
	require.NoError(t, a.forwardStdio(t.Context(), relay, eastID, "counter", strings.NewReader("some words")))
	require.Equal(t, "10 bytes", out.String())
}

func TestKubeConfig(t *testing.T) {
	t.Parallel()
	b := newRelayFixture(t)
	file := filepath.Join(b.dir, "config")
	const theirs = `apiVersion: v1
kind: Config
current-context: theirs
clusters: [{name: theirs, cluster: {server: "https://theirs.example"}}]
users: [{name: theirs, user: {token: secret}}]
contexts: [{name: theirs, context: {cluster: theirs, user: theirs}},
	{name: lockstep-east, context: {cluster: old, user: old, namespace: shop}}]
`
	require.NoError(t, os.WriteFile(file, []byte(theirs), 0o600))
	_, note := b.runs(readerID, "kube-config", "east", "--file", file)
	require.Contains(t, note, `set the current context of `+file+` to "lockstep-east" for agent east`)
	written, err := clientcmd.LoadFromFile(file)
	require.NoError(t, err)
	require.Equal(t, "secret", written.AuthInfos["theirs"].Token, "other entries are kept")
	require.Equal(t, "lockstep-east", written.CurrentContext)
	require.Equal(t, "shop", written.Contexts["lockstep-east"].Namespace)
	cluster := written.Clusters["lockstep-east"]
	require.Equal(t, "https://"+b.relay["external"]+"/agents/7/kubernetes", cluster.Server)
	certificate, err := os.ReadFile(b.keys.CertFile)
	require.NoError(t, err)
	require.Equal(t, certificate, cluster.CertificateAuthorityData)
	exec := written.AuthInfos["lockstep-east"].Exec
	require.Equal(t, []string{"kube-credential"}, exec.Args)
	require.True(t, filepath.IsAbs(exec.Command))
	variables := map[string]string{}
	for _, v := range exec.Env {
		variables[v.Name] = v.Value
	}
	require.Equal(t, b.flags[1], variables["LOCKSTEP_SERVER"])
	require.Equal(t, filepath.Join(b.dir, "token-6"), variables["LOCKSTEP_TOKEN_FILE"],
		"the path of the token file, not the token")
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NotContains(t, string(raw), "eyJ")
	_, _ = b.runs(readerID, "kube-config", "7", "--file", file, "--context", "mine")
	again, err := clientcmd.LoadFromFile(file)
	require.NoError(t, err)
	require.Len(t, again.Contexts, 3)
	require.Equal(t, "mine", again.CurrentContext)

	require.Contains(t, b.fails(5, readerID, "kube-config", "8", "--file", file), "no such agent")
	plain := append(b.as(readerID, "kube-config", "7"), "--relay-server", "http://127.0.0.1:1")
	code, _, stderr := run(t, plain...)
	require.Equal(t, 8, code, stderr)
	require.Contains(t, stderr, "kubectl sends credentials over HTTPS only")
	require.NoError(t, os.WriteFile(file, []byte("{"), 0o600))
	require.Contains(t, b.fails(2, readerID, "kube-config", "7", "--file", file), "read the kubectl configuration")
}

func TestKubeCredential(t *testing.T) {
	t.Parallel()
	b := newRelayFixture(t)
	out, note := b.runs(readerID, "kube-credential")
	require.Empty(t, note)
	var credential clientauth.ExecCredential
	require.NoError(t, json.Unmarshal([]byte(out), &credential))
	require.Equal(t, "client.authentication.k8s.io/v1", credential.APIVersion)
	require.Equal(t, "ExecCredential", credential.Kind)
	require.NotEmpty(t, credential.Status.Token)
	life := time.Until(credential.Status.ExpirationTimestamp.Time)
	require.Positive(t, life)
	require.Less(t, life, 5*time.Minute)
	line := append([]string{"--token-file", b.keys.SecretFile}, b.flags...)
	code, _, stderr := run(t, append(line, "kube-credential")...)
	require.Equal(t, 3, code, stderr)

	require.NoError(t, checkExecInfo(""))
	require.NoError(t, checkExecInfo(`{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential"}`))
	require.ErrorContains(t, checkExecInfo(`{"apiVersion":"client.authentication.k8s.io/v1beta1"}`), "v1beta1")
	require.ErrorContains(t, checkExecInfo(`{`), "malformed")
}

func TestRelayInitKeepsExistingFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca := filepath.Join(dir, "for-all.crt")
	line := []string{
		"relay", "init",
		"--dir", filepath.Join(dir, "relay"),
		"--ca-file", ca,
		"--host", "relay.example,10.0.0.7",
	}
	code, out, stderr := run(t, line...)
	require.Zero(t, code, stderr)
	require.Equal(t, 4, strings.Count(out, "created"), out)
	before := contents(t, dir)
	code, out, stderr = run(t, line...)
	require.Zero(t, code, stderr)
	require.Equal(t, 4, strings.Count(out, "kept"), out)
	require.Equal(t, before, contents(t, dir))
	keys, _, err := stack.InitRelay(filepath.Join(dir, "relay"))
	require.NoError(t, err)
	require.Equal(t, before[keys.CertFile], before[ca])
	for file, mode := range map[string]os.FileMode{keys.SecretFile: 0o600, keys.KeyFile: 0o600, ca: 0o644} {
		info, err := os.Stat(file)
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode().Perm(), file)
	}
	require.GreaterOrEqual(t, len(before[keys.SecretFile]), 32)
}
