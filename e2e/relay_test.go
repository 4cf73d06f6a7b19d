package e2e_test

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

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"lockstep.internal/e2e/history"
	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/relay"
	"lockstep.internal/services/relay/agent"
	"lockstep.internal/tools/stack"
)

// TestRelay has people reach clusters through the relay with what the command line gives them: real programs, a real control plane.
func TestRelay(t *testing.T) {
	t.Parallel()
	s := startWith(t, stack.Options{Programs: buildServices(t), Relays: 1, RelayAgents: 2, Configure: func(_ string, config any) {
		switch cfg := config.(type) {
		case *agent.Config: // the cluster has no network, so that targets are on this machine
			cfg.Targets.AllowedAddresses = append(cfg.Targets.AllowedAddresses, "127.0.0.1:*")
		case *relay.Config: // a machine that is busy with other tests is no relay that is lost
			cfg.Registry.Lease, cfg.External.Patience = patience, patience
		}
	}})
	s.together(
		promise{"kubectl's clients are in the cluster who they are in the project", kubectlGoesThroughTheRelay},
		promise{"kubectl itself reads, watches, executes and forwards", kubectlDoesAllOfIt},
		promise{"a target's bytes are carried, each direction to its end", bytesAreCarriedToTheirEnd},
		promise{"a request waits for an agent that is not there yet", aRequestWaitsForItsAgent},
		promise{"an agent that is revoked is cut, and reached no more", aRevokedAgentIsCut},
	)
	for _, stream := range topology.Streams() {
		if stream.Name == topology.StreamAgents {
			require.Empty(t, history.Events(stack.Cell, stream, told(s.records(stream.Family))))
		}
	}
	s.secrets.requireKeptOnStreams(t, s)
}

// member is a new user with a role in a project, and the command line that is set up for it. Without a role it is a stranger.
func (s *system) member(name string, project int64, role statev1.Role) (int64, commandLine) {
	s.t.Helper()
	ctx := s.t.Context()
	user, err := s.api.Directory.CreateUser(ctx, connect.NewRequest(&statev1.CreateUserRequest{Username: name}))
	require.NoError(s.t, err)
	id := user.Msg.GetUser().GetId()
	if role != statev1.Role_ROLE_UNSPECIFIED {
		_, err = s.api.Directory.PutMembership(ctx, connect.NewRequest(&statev1.PutMembershipRequest{Membership: &statev1.Membership{
			UserId: id, Scope: statev1.ScopeKind_SCOPE_KIND_PROJECT, ScopeId: project, Role: role,
		}}))
		require.NoError(s.t, err)
	}
	token, err := s.api.Tokens.CreateToken(ctx, connect.NewRequest(&statev1.CreateTokenRequest{Name: name, UserId: id}))
	require.NoError(s.t, err)
	s.secrets.add(token.Msg.GetValue())
	file := filepath.Join(s.t.TempDir(), "token")
	require.NoError(s.t, os.WriteFile(file, []byte(token.Msg.GetValue()), 0o600))
	return id, s.commandLine().with("LOCKSTEP_TOKEN_FILE=" + file)
}

// throughRelay is a client of Kubernetes with the kubeconfig that the command line writes.
func (c commandLine) throughRelay(agent string) kubernetes.Interface {
	c.t.Helper()
	file := filepath.Join(c.t.TempDir(), "kubeconfig")
	c.ok("kube-config", agent, "--file", file)
	return clusterClient(c.t, file)
}

func kubectlGoesThroughTheRelay(s *system) {
	t, ctx := s.t, s.t.Context()
	readerID, readerCLI := s.member("relay-reader", s.project, statev1.Role_ROLE_READER)
	developerID, developerCLI := s.member("relay-developer", s.project, statev1.Role_ROLE_DEVELOPER)
	_, strangerCLI := s.member("relay-stranger", s.project, statev1.Role_ROLE_UNSPECIFIED)
	reader, developer := readerCLI.throughRelay("local"), developerCLI.throughRelay("local")

	// What is new in the directory is known to the relay a moment later.
	awaitCluster(t, "the reader may list", func(ctx context.Context) (bool, error) {
		_, err := reader.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		return err == nil, nil
	})
	awaitCluster(t, "the developer may list", func(ctx context.Context) (bool, error) {
		_, err := developer.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		return err == nil, nil
	})
	watching, err := reader.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=through-relay"})
	require.NoError(t, err)
	made := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "through-relay"}, Data: map[string]string{"made": "by the developer"}}
	_, err = developer.CoreV1().ConfigMaps("default").Create(ctx, made, metav1.CreateOptions{})
	require.NoError(t, err)
	seen := <-watching.ResultChan()
	require.Equal(t, watch.Added, seen.Type)
	watching.Stop()
	found, err := s.kube.CoreV1().ConfigMaps("default").Get(ctx, made.Name, metav1.GetOptions{})
	require.NoError(t, err, "it is really there")
	require.Equal(t, made.Data, found.Data)

	_, err = reader.CoreV1().ConfigMaps("default").Create(ctx, made, metav1.CreateOptions{})
	require.True(t, apierrors.IsForbidden(err), "the relay refuses: %v", err)
	_, err = reader.CoreV1().Secrets("default").List(ctx, metav1.ListOptions{})
	require.True(t, apierrors.IsForbidden(err), "the cluster refuses: %v", err)
	require.ErrorContains(t, err, `User "lockstep:user:`+strconv.FormatInt(readerID, 10)+`"`)

	// Even with a kubeconfig that somebody gave it a stranger does not hear that there is such an agent.
	require.Contains(t, strangerCLI.fails(5, "kube-config", "local", "--file", filepath.Join(t.TempDir(), "none")), "does not exist")
	lent := filepath.Join(t.TempDir(), "lent")
	developerCLI.ok("kube-config", "local", "--file", lent)
	raw, err := os.ReadFile(lent)
	require.NoError(t, err)
	for _, variable := range strangerCLI.env {
		if file, is := strings.CutPrefix(variable, "LOCKSTEP_TOKEN_FILE="); is {
			raw = []byte(replaceTokenFile(string(raw), file))
		}
	}
	require.NoError(t, os.WriteFile(lent, raw, 0o600))
	_, err = clusterClient(t, lent).CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	require.Contains(t, strangerCLI.fails(5, "relay", "pods", strconv.FormatInt(s.agent, 10)), "does not exist")

	awaitCluster(t, "two replicas are connected", func(context.Context) (bool, error) {
		return strings.Count(readerCLI.ok("relay", "agents", "local"), "\n")-1 == 2, nil
	})
	require.Contains(t, readerCLI.ok("relay", "list"), s.Address(stack.Relay, stack.ListenerInternal))

	awaitCluster(t, "both are told", func(context.Context) (bool, error) { return len(s.connected(s.agent)) >= 2, nil })
	user := func(id int64) events.RequestCaller {
		return events.RequestCaller{Kind: events.CallerKindUser, UserID: int(id)}
	}
	maps := events.RequestResource{Version: "v1", Resource: "configmaps", Namespace: "default"}
	created := s.awaitRequest(s.agent, "create of configmaps", func(r events.AgentRequest) bool {
		return r.Verb == "create" && r.Resource != nil && *r.Resource == maps && r.Caller == user(developerID)
	})
	require.Equal(t, http.StatusCreated, created.Status)
	require.Equal(t, events.RequestPhaseEnded, created.Phase)
	require.Contains(t, s.connected(s.agent), created.ConnectionID)
	refused := s.awaitRequest(s.agent, "refused create", func(r events.AgentRequest) bool {
		return r.Verb == "create" && r.Caller == user(readerID)
	})
	require.Equal(t, http.StatusForbidden, refused.Status)
	require.Empty(t, refused.ConnectionID, "it went nowhere")
	begun := s.awaitRequest(s.agent, "watch that has begun", func(r events.AgentRequest) bool {
		return r.Verb == "watch" && r.Phase == events.RequestPhaseBegun && r.Caller == user(readerID)
	})
	s.awaitRequest(s.agent, "its end", func(r events.AgentRequest) bool {
		return r.RequestID == begun.RequestID && r.Phase == events.RequestPhaseEnded
	})
	for _, r := range s.requests(s.agent) {
		require.NotContains(t, r.Path, "?")
	}
}

// replaceTokenFile makes somebody's kubeconfig another one's.
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

// sink reads all that it is sent, and says only then what that was.
func sink(t *testing.T) string {
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

func bytesAreCarriedToTheirEnd(s *system) {
	t := s.t
	project := s.newProject("bytes")
	_, err := s.AddAgent(t.Context(), project, "bytes", s.Kubeconfig())
	require.NoError(t, err)
	developerID, cli := s.member("bytes-developer", project, statev1.Role_ROLE_DEVELOPER)
	_, readerCLI := s.member("bytes-reader", project, statev1.Role_ROLE_READER)
	s.commandLine().ok("agent", "configure", "bytes", "--relay-target", "sink="+sink(t))

	want := sha256.Sum256([]byte("few words"))
	require.Eventually(t, func() bool { // the agent hears of its target
		code, out, _ := cli.reading("few words").run("relay", "forward", "bytes", "sink", "--stdio")
		return code == 0 && out == string(want[:])
	}, patience, time.Second)
	require.Contains(t, cli.fails(4, "relay", "forward", "bytes", "other", "--stdio"), `has no target "other"`)
	require.Eventually(t, func() bool { // and the relay of the reader
		code, _, says := readerCLI.run("relay", "forward", "bytes", "sink", "--stdio")
		return code == 4 && strings.Contains(says, "needs the role developer")
	}, patience, time.Second)

	forwarding := cli.begin("relay", "forward", "bytes", "sink")
	address, _, _ := strings.Cut(forwarding.line("leads to sink"), " ")
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
	require.Zero(t, forwarding.interrupt())

	id := s.agentID("bytes")
	s.awaitRequest(id, "the end of a stream", func(r events.AgentRequest) bool {
		return r.Protocol == events.RequestProtocolTcp && r.Target == "sink" && r.Phase == events.RequestPhaseEnded && r.Caller.UserID == int(developerID) &&
			r.BytesReceived+r.BytesSent == len(large)+len(answer) && r.Error == ""
	})
}

func aRequestWaitsForItsAgent(s *system) {
	t := s.t
	project := s.newProject("late")
	late, err := s.AddAgent(t.Context(), project, "late", s.Kubeconfig())
	require.NoError(t, err)
	_, cli := s.member("late-reader", project, statev1.Role_ROLE_READER)
	client := cli.throughRelay("late")
	awaitCluster(t, "the reader may list", func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		return err == nil, nil
	})
	for _, name := range []string{stack.RelayAgentOf("late"), stack.RelayAgentOf("late") + "#2"} {
		require.NoError(t, s.StopService(name))
	}
	awaitCluster(t, "nobody is connected", func(context.Context) (bool, error) {
		return strings.Count(cli.ok("relay", "agents", "late"), "\n") == 0, nil
	})
	answered := make(chan error, 1)
	go func() {
		watching, err := client.CoreV1().Pods("default").Watch(t.Context(), metav1.ListOptions{})
		if err == nil {
			watching.Stop()
		}
		answered <- err
	}()
	s.awaitRequest(late.ID, "a watch that has begun", func(r events.AgentRequest) bool { return r.Verb == "watch" && r.Phase == events.RequestPhaseBegun })
	require.Empty(t, answered, "it waits")
	require.NoError(t, s.StartService(t.Context(), stack.RelayAgentOf("late")))
	require.NoError(t, <-answered)
	for _, id := range s.connected(late.ID)[:2] {
		gone := s.awaitDisconnected(late.ID, id)
		require.Equal(t, events.DisconnectReasonAgentLeft, gone.Reason)
	}
}

func aRevokedAgentIsCut(s *system) {
	t := s.t
	project := s.newProject("revoked")
	revoked, err := s.AddAgent(t.Context(), project, "revoked", s.Kubeconfig())
	require.NoError(t, err)
	_, cli := s.member("revoked-reader", project, statev1.Role_ROLE_READER)
	client := cli.throughRelay("revoked")
	var watching watch.Interface
	awaitCluster(t, "the reader may watch", func(ctx context.Context) (bool, error) {
		var err error
		watching, err = client.CoreV1().Pods("default").Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=none"})
		return err == nil, nil
	})
	defer watching.Stop()
	s.commandLine().ok("agent", "revoke", "revoked")
	for open := true; open; { // until it is cut
		_, open = <-watching.ResultChan()
	}
	for _, id := range s.connected(revoked.ID) {
		require.Equal(t, events.DisconnectReasonRevoked, s.awaitDisconnected(revoked.ID, id).Reason)
	}
	_, err = client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	var refusal apierrors.APIStatus
	require.ErrorAs(t, err, &refusal)
	require.EqualValues(t, http.StatusConflict, refusal.Status().Code, "it does not wait for one that will not come")
	require.Empty(t, cli.ok("relay", "agents", strconv.FormatInt(revoked.ID, 10)))
}

func (s *system) agentID(name string) int64 {
	s.t.Helper()
	for _, a := range s.Agents() {
		if a.Name == name {
			return a.ID
		}
	}
	require.Fail(s.t, "no agent "+name)
	return 0
}

// ofAgent are events that relays have told of an agent.
func ofAgent[T any](s *system, agent int64, kind string) []T {
	s.t.Helper()
	var all []T
	for _, r := range s.records(topology.FamilyAgent + "." + strconv.FormatInt(agent, 10)) {
		e, err := event.Decode(r.header, r.data)
		require.NoError(s.t, err)
		if e.Type() == kind {
			all = append(all, decode[T](s.t, e))
		}
	}
	return all
}

// connected are the connections that an agent has ever had, in the order in which they came.
func (s *system) connected(agent int64) []string {
	s.t.Helper()
	var ids []string
	for _, e := range ofAgent[events.AgentConnected](s, agent, events.TypeAgentConnected) {
		ids = append(ids, e.ConnectionID)
	}
	return ids
}

// awaitDisconnected waits until the end of a connection is told.
func (s *system) awaitDisconnected(agent int64, connection string) events.AgentDisconnected {
	s.t.Helper()
	var found events.AgentDisconnected
	awaitCluster(s.t, "the end of connection "+connection+" is told", func(context.Context) (bool, error) {
		all := ofAgent[events.AgentDisconnected](s, agent, events.TypeAgentDisconnected)
		i := slices.IndexFunc(all, func(e events.AgentDisconnected) bool { return e.ConnectionID == connection })
		if i >= 0 {
			found = all[i]
		}
		return i >= 0, nil
	})
	return found
}

// requests are those to an agent, as relays have told of them.
func (s *system) requests(agent int64) []events.AgentRequest {
	s.t.Helper()
	var all []events.AgentRequest
	for _, e := range ofAgent[events.AgentRequests](s, agent, events.TypeAgentRequests) {
		all = append(all, e.Requests...)
	}
	return all
}

// awaitRequest waits until a request is told of.
func (s *system) awaitRequest(agent int64, what string, is func(events.AgentRequest) bool) events.AgentRequest {
	s.t.Helper()
	var found events.AgentRequest
	awaitCluster(s.t, what+" is told", func(context.Context) (bool, error) {
		all := s.requests(agent)
		i := slices.IndexFunc(all, is)
		if i >= 0 {
			found = all[i]
		}
		return i >= 0, nil
	})
	return found
}
