package security_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/stack"
)

// isolationScenario is a system with an attacker and a victim whose data must not change.
type isolationScenario struct {
	*fixture.System

	attacker natsauth.AgentCredentials
	// project is the attacker's.
	project int64
	// bystander is an agent that works meanwhile. Its ticks and pulls do not count as changes.
	bystander int64
	// victim is an agent whose services are stopped, so that nothing of it changes on its own.
	victim     natsauth.AgentCredentials
	workspaces []*fixture.Workspace
	// own is the attacker's workspace.
	own       *fixture.Workspace
	recorders map[string]*recorder
}

// mayChange reports whether the attacker may change the subject, directly or through the state
// service.
func (s *isolationScenario) mayChange(subject string) bool {
	rest := strings.TrimPrefix(subject, topology.Root+"."+string(stack.Cell)+".")
	own := strconv.FormatInt(s.attacker.AgentID, 10)
	for _, prefix := range []string{
		"observed." + own + ".", "applied." + own + ".", "dead.state.observed." + own + ".",
		"dead.state.applied." + own + ".", "dead.deploys.observed." + own + ".", "control." + own + ".",
		"workspace." + strconv.FormatInt(s.project, 10) + ".",
		// Orphans that it reports as its own, which belong to no project.
		"workspace.0.",
		fmt.Sprintf("observed.%d.tick", s.bystander),
		// Rollouts of its own cluster.
		"deploy." + otherCluster + ".",
	} {
		if strings.HasPrefix(rest, prefix) {
			return true
		}
	}
	return false
}

// evidence returns everything that an attacker must not change, as an operator sees it.
func (s *isolationScenario) evidence() map[string]any {
	s.T.Helper()
	found := map[string]any{}
	streams := s.JS.ListStreams(s.T.Context())
	for info := range streams.Info() {
		s.ofStream(found, info)
	}
	require.NoError(s.T, streams.Err())
	for _, w := range s.workspaces {
		request := &statev1.GetWorkspaceRequest{Workspace: w.Reference()}
		shown, err := s.API.Workspaces.GetWorkspace(s.T.Context(), connect.NewRequest(request))
		require.NoError(s.T, err)
		found["workspace "+w.Name] = protojson.Format(shown.Msg.GetWorkspace())
	}
	for name, recorder := range s.recorders {
		found["received at "+name] = recorder.all()
	}
	return found
}

func (s *isolationScenario) ofStream(found map[string]any, info *jetstream.StreamInfo) {
	s.T.Helper()
	ctx, name := s.T.Context(), info.Config.Name
	found["stream "+name] = []any{info.Config, info.Created}
	stream, err := s.JS.Stream(ctx, name)
	require.NoError(s.T, err)
	details, err := stream.Info(ctx, jetstream.WithSubjectFilter(">"))
	require.NoError(s.T, err)
	for subject, count := range details.State.Subjects {
		if s.mayChange(subject) {
			continue
		}
		last, err := stream.GetLastMsgForSubject(ctx, subject)
		require.NoError(s.T, err)
		found[subject] = fmt.Sprintf("%d messages, the last %d: %v %s", count, last.Sequence, last.Header, last.Data)
	}
	switch name {
	case topology.StreamDesired, topology.StreamDesiredLog, topology.StreamDirectory:
		found["end of "+name] = details.State.LastSeq
	default:
	}
	if details.Config.MaxMsgsPerSubject != 1 {
		found["holes in "+name] = []any{details.State.FirstSeq, details.State.NumDeleted}
	}
	consumers := stream.ListConsumers(ctx)
	for consumer := range consumers.Info() {
		owner := consumer.Name[strings.LastIndex(consumer.Name, "-")+1:]
		switch owner {
		case strconv.FormatInt(s.attacker.AgentID, 10):
			found[name+" "+consumer.Name] = []any{consumer.Config, consumer.Created}
		case strconv.FormatInt(s.bystander, 10):
			found[name+" "+consumer.Name] = []any{
				consumer.Config, consumer.Created, consumer.Delivered.Stream, consumer.AckFloor.Stream, consumer.Paused,
			}
		default:
			if consumer.Config.Durable == "" && !strings.Contains(consumer.Name, attackName) {
				continue // a consumer of the state service, which advances
			}
			found[name+" "+consumer.Name] = []any{
				consumer.Config, consumer.Created, consumer.Delivered.Consumer, consumer.Delivered.Stream,
				consumer.AckFloor.Stream, consumer.Paused, consumer.NumAckPending, consumer.NumRedelivered,
				consumer.NumPending, consumer.NumWaiting,
			}
		}
	}
	require.NoError(s.T, consumers.Err())
}

// principal connects with the credentials of a part of the control plane.
func principal(s *fixture.System, name string) *nats.Conn {
	s.T.Helper()
	key, err := nats.NkeyOptionFromSeed(natsauth.SeedFile(s.Dir()+"/nats", name))
	require.NoError(s.T, err)
	conn, err := nats.Connect(s.NATS().ClientURL(), key, nats.CustomInboxPrefix(natsauth.InboxPrefix(name)))
	require.NoError(s.T, err)
	s.T.Cleanup(conn.Close)
	return conn
}

// subjects returns all stored subjects that the attacker may not change.
func (s *isolationScenario) subjects() []string {
	s.T.Helper()
	var all []string
	for _, declared := range topology.Streams() {
		stream, err := s.JS.Stream(s.T.Context(), declared.Name)
		require.NoError(s.T, err)
		details, err := stream.Info(s.T.Context(), jetstream.WithSubjectFilter(">"))
		require.NoError(s.T, err)
		for subject := range details.State.Subjects {
			if !s.mayChange(subject) {
				all = append(all, subject)
			}
		}
	}
	slices.Sort(all)
	return all
}
