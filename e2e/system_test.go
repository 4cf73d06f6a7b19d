package e2e_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"lockstep.internal/libs/natsauth"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/stack"
	"lockstep.internal/tools/testkit/natstest"
)

// patience is how long something may take that takes seconds on an idle machine.
const patience = 4 * time.Minute

// system is a whole Lockstep, and the ways to look at it.
type system struct {
	*stack.Stack

	t       *testing.T
	api     *client.API
	kube    kubernetes.Interface
	js      jetstream.JetStream
	group   int64
	project int64
	agent   int64
	// secrets are values that nobody but the cluster may have in the clear.
	secrets *secrets
	// lookout is set where what is told of workloads is compared with what the cluster did.
	lookout *lookout
	// traces are what all services tell of their work.
	traces *traces
}

// start starts a system for the test, and at the end stops it.
func start(t *testing.T, configure func(service string, config any)) *system {
	t.Helper()
	return startWith(t, stack.Options{Configure: configure})
}

// startPrograms is start with services that are programs of their own, so that they can be killed.
func startPrograms(t *testing.T, configure func(service string, config any)) *system {
	t.Helper()
	return startWith(t, stack.Options{Programs: buildServices(t), Configure: configure})
}

func startWith(t *testing.T, opts stack.Options) *system {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	opts.Progress = t.Output()
	collected := collectTraces(t)
	opts.Configure = collected.with(opts.Configure)
	running, err := stack.Start(ctx, opts)
	require.NoError(t, err)
	s := &system{Stack: running, t: t, secrets: &secrets{}, traces: collected}
	t.Cleanup(func() {
		if t.Failed() {
			s.keepLog()
		}
		require.NoError(t, running.Stop(), "the system ends in order")
		require.Empty(t, s.secrets.findIn(collected.all()), "traces, to the last")
	})
	s.openAPI()
	s.kube = clusterClient(t, s.Kubeconfig())
	s.openStreams()
	agent := running.Agents()[0]
	s.agent = agent.ID
	credentials, err := natsauth.ReadAgentCredentials(agent.CredentialsFile)
	require.NoError(t, err)
	s.secrets.add(credentials.Token)
	s.secrets.add(credentials.CurveSeed)
	projects, err := s.api.Directory.ListProjects(ctx, connect.NewRequest(&statev1.ListProjectsRequest{}))
	require.NoError(t, err)
	require.Len(t, projects.Msg.GetProjects(), 1)
	s.project, s.group = projects.Msg.GetProjects()[0].GetId(), projects.Msg.GetProjects()[0].GetGroupId()
	return s
}

func (s *system) openAPI() {
	s.t.Helper()
	token, err := s.AdminToken()
	require.NoError(s.t, err)
	s.secrets.add(token)
	transport := &http.Transport{}
	s.t.Cleanup(transport.CloseIdleConnections)
	s.api = client.New(&http.Client{Transport: transport}, s.APIURL(), token)
}

// clusterClient calls the API server of a cluster.
func clusterClient(t *testing.T, kubeconfig string) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	require.NoError(t, err)
	config.QPS = -1
	transport, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	t.Cleanup(transport.CloseIdleConnections)
	made, err := kubernetes.NewForConfigAndClient(config, transport)
	require.NoError(t, err)
	return made
}

// openStreams connects to NATS as an operator, as the command line does.
func (s *system) openStreams() {
	s.t.Helper()
	config, err := client.Read(s.ClientFile())
	require.NoError(s.t, err)
	key, err := nats.NkeyOptionFromSeed(config.NATSSeedFile)
	require.NoError(s.t, err)
	conn, err := nats.Connect(config.NATSURL, key, nats.CustomInboxPrefix(natsauth.InboxPrefix(natsauth.PrincipalOperator)),
		nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	require.NoError(s.t, err)
	s.t.Cleanup(conn.Close)
	s.js = natstest.Open(s.t, conn)
}

// keepLog puts the services' log where it survives the system.
func (s *system) keepLog() {
	s.t.Helper()
	raw, err := os.ReadFile(s.LogFile())
	if err != nil {
		return
	}
	kept := filepath.Join(os.TempDir(), "lockstep-e2e-"+strings.ReplaceAll(s.t.Name(), "/", "_")+".log")
	if err := os.WriteFile(kept, raw, 0o600); err == nil {
		s.t.Logf("the services' log is kept in %s", kept)
	}
}

// in is the system for a subtest.
func (s *system) in(t *testing.T) *system {
	t.Helper()
	here := *s
	here.t = t
	return &here
}

// promise is a subtest on a running system.
type promise struct {
	says string
	test func(s *system)
}

// together tests promises at the same time, and returns when all are tested.
func (s *system) together(promises ...promise) {
	s.t.Helper()
	s.t.Run("promises", func(t *testing.T) {
		for _, p := range promises {
			t.Run(p.says, func(t *testing.T) {
				t.Parallel()
				p.test(s.in(t))
			})
		}
	})
}

// inTurn tests promises one after the other.
func (s *system) inTurn(promises ...promise) {
	s.t.Helper()
	for _, p := range promises {
		s.t.Run(p.says, func(t *testing.T) { p.test(s.in(t)) })
	}
}

// newProject makes one, so that a test has agents of its own.
func (s *system) newProject(name string) int64 {
	s.t.Helper()
	made, err := s.api.Directory.CreateProject(s.t.Context(), connect.NewRequest(&statev1.CreateProjectRequest{GroupId: s.group, Name: name}))
	require.NoError(s.t, err)
	return made.Msg.GetProject().GetId()
}
