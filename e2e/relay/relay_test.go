package relay_test

import (
	"context"
	"crypto/sha256"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/stack"
)

// member creates a user with a role in a project and returns the user's id and CLI. Without a role
// the user is a stranger.
func member(s *fixture.System, name string, project int64, role statev1.Role) (int64, fixture.CLI) {
	s.T.Helper()
	user := s.NewUser(name, project, role)
	file := filepath.Join(s.T.TempDir(), "token")
	require.NoError(s.T, os.WriteFile(file, []byte(user.Token), 0o600))
	return user.ID, s.CLI().With("LOCKSTEP_TOKEN_FILE=" + file)
}

// throughRelay returns a Kubernetes client with the kubeconfig that the CLI writes.
func throughRelay(c fixture.CLI, agent string) kubernetes.Interface {
	c.T.Helper()
	file := filepath.Join(c.T.TempDir(), "kubeconfig")
	c.OK("kube-config", agent, "--file", file)
	return fixture.KubeClient(c.T, file)
}

func TestRelayClientGo(t *testing.T) {
	s := shared.Parallel(t)
	ctx := t.Context()
	readerID, readerCLI := member(s, "relay-reader", s.ProjectID, statev1.Role_ROLE_READER)
	developerID, developerCLI := member(s, "relay-developer", s.ProjectID, statev1.Role_ROLE_DEVELOPER)
	_, strangerCLI := member(s, "relay-stranger", s.ProjectID, statev1.Role_ROLE_UNSPECIFIED)
	reader, developer := throughRelay(readerCLI, "local"), throughRelay(developerCLI, "local")

	// The relay learns of new users a moment later.
	fixture.AwaitCluster(t, "the reader may list", func(ctx context.Context) (bool, error) {
		_, err := reader.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		return err == nil, nil
	})
	fixture.AwaitCluster(t, "the developer may list", func(ctx context.Context) (bool, error) {
		_, err := developer.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		return err == nil, nil
	})
	fixture.AwaitCluster(t, "the stranger is known", func(context.Context) (bool, error) {
		code, _, _ := strangerCLI.Run("relay", "pods", strconv.FormatInt(s.AgentID, 10))
		return code == 5, nil
	})
	watching, err := reader.CoreV1().ConfigMaps("default").Watch(ctx,
		metav1.ListOptions{FieldSelector: "metadata.name=through-relay"})
	require.NoError(t, err)
	made := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "through-relay"},
		Data:       map[string]string{"made": "by the developer"},
	}
	_, err = developer.CoreV1().ConfigMaps("default").Create(ctx, made, metav1.CreateOptions{})
	require.NoError(t, err)
	seen := <-watching.ResultChan()
	require.Equal(t, watch.Added, seen.Type)
	watching.Stop()
	found, err := s.Kube.CoreV1().ConfigMaps("default").Get(ctx, made.Name, metav1.GetOptions{})
	require.NoError(t, err, "it is really there")
	require.Equal(t, made.Data, found.Data)

	_, err = reader.CoreV1().ConfigMaps("default").Create(ctx, made, metav1.CreateOptions{})
	require.True(t, apierrors.IsForbidden(err), "the relay refuses: %v", err)
	_, err = reader.CoreV1().Secrets("default").List(ctx, metav1.ListOptions{})
	require.True(t, apierrors.IsForbidden(err), "the cluster refuses: %v", err)
	require.ErrorContains(t, err, `User "lockstep:user:`+strconv.FormatInt(readerID, 10)+`"`)

	// A user without a role does not learn from another user's kubeconfig that the agent exists.
	require.Contains(t, strangerCLI.Fails(5, "kube-config", "local", "--file", filepath.Join(t.TempDir(), "none")),
		"does not exist")
	lent := filepath.Join(t.TempDir(), "lent")
	developerCLI.OK("kube-config", "local", "--file", lent)
	raw, err := os.ReadFile(lent)
	require.NoError(t, err)
	for _, variable := range strangerCLI.Env {
		if file, is := strings.CutPrefix(variable, "LOCKSTEP_TOKEN_FILE="); is {
			raw = []byte(replaceTokenFile(string(raw), file))
		}
	}
	require.NoError(t, os.WriteFile(lent, raw, 0o600))
	_, err = fixture.KubeClient(t, lent).CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	require.Contains(t, strangerCLI.Fails(5, "relay", "pods", strconv.FormatInt(s.AgentID, 10)), "does not exist")

	fixture.AwaitCluster(t, "two replicas are connected", func(context.Context) (bool, error) {
		return strings.Count(readerCLI.OK("relay", "agents", "local"), "\n")-1 == 2, nil
	})
	require.Contains(t, readerCLI.OK("relay", "list"), s.Address(stack.Relay, stack.ListenerInternal))

	fixture.AwaitCluster(t, "both are reported",
		func(context.Context) (bool, error) { return len(connected(s, s.AgentID)) >= 2, nil })
	user := func(id int64) events.RequestCaller {
		return events.RequestCaller{Kind: events.CallerKindUser, UserID: int(id)}
	}
	maps := events.RequestResource{Version: "v1", Resource: "configmaps", Namespace: "default"}
	created := awaitRequest(s, s.AgentID, "create of configmaps", func(r events.AgentRequest) bool {
		return r.Verb == "create" && r.Resource != nil && *r.Resource == maps && r.Caller == user(developerID)
	})
	require.Equal(t, http.StatusCreated, created.Status)
	require.Equal(t, events.RequestPhaseEnded, created.Phase)
	require.Contains(t, connected(s, s.AgentID), created.ConnectionID)
	refused := awaitRequest(s, s.AgentID, "refused create", func(r events.AgentRequest) bool {
		return r.Verb == "create" && r.Caller == user(readerID)
	})
	require.Equal(t, http.StatusForbidden, refused.Status)
	require.Empty(t, refused.ConnectionID, "it was not forwarded")
	begun := awaitRequest(s, s.AgentID, "watch that has begun", func(r events.AgentRequest) bool {
		return r.Verb == "watch" && r.Phase == events.RequestPhaseBegun && r.Caller == user(readerID)
	})
	awaitRequest(s, s.AgentID, "its end", func(r events.AgentRequest) bool {
		return r.RequestID == begun.RequestID && r.Phase == events.RequestPhaseEnded
	})
	for _, r := range requests(s, s.AgentID) {
		require.NotContains(t, r.Path, "?")
	}
}

// replaceTokenFile replaces the token file in a kubeconfig.
func replaceTokenFile(kubeconfig, file string) string {
	lines := strings.Split(kubeconfig, "\n")
	for i, line := range lines {
		if strings.Contains(line, "name: LOCKSTEP_TOKEN_FILE") {
			indent, _, _ := strings.Cut(lines[i+1], "value:")
			lines[i+1] = indent + "value: " + file
		}
	}
	return strings.Join(lines, "\n")
}

// digestServer listens for connections, reads each to its end and answers with the SHA-256 of what
// it read.
func digestServer(t testing.TB) string {
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
			hash := sha256.New()
			if _, err := io.Copy(hash, conn); err == nil {
				_, _ = conn.Write(hash.Sum(nil))
			}
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
	return listener.Addr().String()
}

func TestRelayForwardsBytes(t *testing.T) {
	s := shared.Parallel(t)

	project := s.NewProject("bytes")
	_, err := s.AddAgent(t.Context(), project, "bytes", s.Kubeconfig())
	require.NoError(t, err)
	developerID, cli := member(s, "bytes-developer", project, statev1.Role_ROLE_DEVELOPER)
	_, readerCLI := member(s, "bytes-reader", project, statev1.Role_ROLE_READER)
	s.CLI().OK("agent", "configure", "bytes", "--relay-target", "sink="+digestServer(t))

	want := sha256.Sum256([]byte("few words"))
	id := agentID(s, "bytes")
	require.Eventually(t, func() bool { // both replicas have received their configuration
		code, out, _ := cli.WithInput("few words").Run("relay", "forward", "bytes", "sink", "--stdio")
		return code == 0 && out == string(want[:]) && len(successfulConnections(s, id, "sink")) == 2
	}, fixture.Timeout, time.Second)
	require.Contains(t, cli.Fails(4, "relay", "forward", "bytes", "other", "--stdio"), `has no target "other"`)
	require.Eventually(t, func() bool { // the relay learns of new users
		code, _, stderr := readerCLI.Run("relay", "forward", "bytes", "sink", "--stdio")
		return code == 4 && strings.Contains(stderr, "needs the role developer")
	}, fixture.Timeout, time.Second)

	forwarding := cli.Start("relay", "forward", "bytes", "sink")
	address, _, _ := strings.Cut(forwarding.AwaitLine("forwards to sink"), " ")
	var dialer net.Dialer
	conn, err := dialer.DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	defer conn.Close()
	large := strings.Repeat("more than any buffer holds; ", 200_000)
	_, err = io.WriteString(conn, large)
	require.NoError(t, err)
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	answer, err := io.ReadAll(conn)
	require.NoError(t, err)
	want = sha256.Sum256([]byte(large))
	require.Equal(t, want[:], answer)
	require.Zero(t, forwarding.Interrupt())

	awaitRequest(s, id, "the end of a stream", func(r events.AgentRequest) bool {
		return r.Protocol == events.RequestProtocolTcp && r.Target == "sink" &&
			r.Phase == events.RequestPhaseEnded && r.Caller.UserID == int(developerID) &&
			r.BytesReceived+r.BytesSent == len(large)+len(answer) &&
			r.Error == ""
	})
}

func TestRelayRequestWaitsForAgent(t *testing.T) {
	s := shared.Parallel(t)

	project := s.NewProject("late")
	late, err := s.AddAgent(t.Context(), project, "late", s.Kubeconfig())
	require.NoError(t, err)
	_, cli := member(s, "late-reader", project, statev1.Role_ROLE_READER)
	client := throughRelay(cli, "late")
	fixture.AwaitCluster(t, "the reader may list", func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		return err == nil, nil
	})
	for _, name := range []string{stack.RelayAgentOf("late"), stack.RelayAgentOf("late") + "#2"} {
		require.NoError(t, s.StopService(name))
	}
	fixture.AwaitCluster(t, "no agent is connected", func(context.Context) (bool, error) {
		return strings.Count(cli.OK("relay", "agents", "late"), "\n") == 0, nil
	})
	answered := make(chan error, 1)
	go func() {
		watching, err := client.CoreV1().Pods("default").Watch(t.Context(), metav1.ListOptions{})
		if err == nil {
			watching.Stop()
		}
		answered <- err
	}()
	awaitRequest(s, late.ID, "a watch that has begun",
		func(r events.AgentRequest) bool { return r.Verb == "watch" && r.Phase == events.RequestPhaseBegun })
	require.Empty(t, answered, "it waits")
	require.NoError(t, s.StartService(t.Context(), stack.RelayAgentOf("late")))
	require.NoError(t, <-answered)
	for _, id := range connected(s, late.ID)[:2] {
		gone := awaitDisconnected(s, late.ID, id)
		require.Equal(t, events.DisconnectReasonAgentLeft, gone.Reason)
	}
}

func TestRelayDisconnectsRevokedAgent(t *testing.T) {
	s := shared.Parallel(t)

	project := s.NewProject("revoked")
	revoked, err := s.AddAgent(t.Context(), project, "revoked", s.Kubeconfig())
	require.NoError(t, err)
	_, cli := member(s, "revoked-reader", project, statev1.Role_ROLE_READER)
	client := throughRelay(cli, "revoked")
	var watching watch.Interface
	fixture.AwaitCluster(t, "the reader may watch", func(ctx context.Context) (bool, error) {
		var err error
		watching, err = client.CoreV1().Pods("default").Watch(t.Context(),
			metav1.ListOptions{FieldSelector: "metadata.name=none"})
		return err == nil, nil
	})
	defer watching.Stop()
	s.CLI().OK("agent", "revoke", "revoked")
	for open := true; open; { // until it is closed
		_, open = <-watching.ResultChan()
	}
	for _, id := range connected(s, revoked.ID) {
		require.Equal(t, events.DisconnectReasonRevoked, awaitDisconnected(s, revoked.ID, id).Reason)
	}
	_, err = client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	var refusal apierrors.APIStatus
	require.ErrorAs(t, err, &refusal)
	require.EqualValues(t, http.StatusConflict, refusal.Status().Code, "a request to a revoked agent fails at once")
	fixture.AwaitCluster(t, "no agent is connected", func(context.Context) (bool, error) {
		return cli.OK("relay", "agents", strconv.FormatInt(revoked.ID, 10)) == "", nil
	})
}

func agentID(s *fixture.System, name string) int64 {
	s.T.Helper()
	for _, a := range s.Agents() {
		if a.Name == name {
			return a.ID
		}
	}
	require.Fail(s.T, "no agent "+name)
	return 0
}

// ofAgent returns the events of one type that relays published about an agent.
func ofAgent[T any](s *fixture.System, agent int64, kind string) []T {
	s.T.Helper()
	family := topology.FamilyAgent
	if kind == events.TypeAuditRequests {
		family = topology.FamilyAudit
	}
	var all []T
	for _, r := range s.Records(family + "." + strconv.FormatInt(agent, 10)) {
		e, err := event.Decode(r.Header, r.Data)
		require.NoError(s.T, err)
		if e.Type() == kind {
			all = append(all, fixture.Decode[T](s.T, e))
		}
	}
	return all
}

// connected returns the ids of all connections of an agent, oldest first.
func connected(s *fixture.System, agent int64) []string {
	s.T.Helper()
	var ids []string
	for _, e := range ofAgent[events.AgentConnected](s, agent, events.TypeAgentConnected) {
		ids = append(ids, e.ConnectionID)
	}
	return ids
}

// awaitDisconnected waits for the event that ends a connection.
func awaitDisconnected(s *fixture.System, agent int64, connection string) events.AgentDisconnected {
	s.T.Helper()
	var found events.AgentDisconnected
	fixture.AwaitCluster(s.T, "the end of connection "+connection+" is reported", func(context.Context) (bool, error) {
		all := ofAgent[events.AgentDisconnected](s, agent, events.TypeAgentDisconnected)
		i := slices.IndexFunc(all, func(e events.AgentDisconnected) bool { return e.ConnectionID == connection })
		if i >= 0 {
			found = all[i]
		}
		return i >= 0, nil
	})
	return found
}

// requests returns the requests to an agent that relays have reported.
func requests(s *fixture.System, agent int64) []events.AgentRequest {
	s.T.Helper()
	var all []events.AgentRequest
	for _, e := range ofAgent[events.AuditRequests](s, agent, events.TypeAuditRequests) {
		all = append(all, e.Requests...)
	}
	return all
}

// successfulConnections returns the connections that have forwarded a stream to the target.
func successfulConnections(s *fixture.System, agent int64, target string) map[string]bool {
	s.T.Helper()
	found := map[string]bool{}
	for _, r := range requests(s, agent) {
		if r.Target == target && r.Phase == events.RequestPhaseEnded && r.Error == "" && r.ConnectionID != "" {
			found[r.ConnectionID] = true
		}
	}
	return found
}

// awaitRequest waits until a request is reported.
func awaitRequest(s *fixture.System, agent int64, what string, is func(events.AgentRequest) bool) events.AgentRequest {
	s.T.Helper()
	var found events.AgentRequest
	fixture.AwaitCluster(s.T, what+" is reported", func(context.Context) (bool, error) {
		all := requests(s, agent)
		i := slices.IndexFunc(all, is)
		if i >= 0 {
			found = all[i]
		}
		return i >= 0, nil
	})
	return found
}
