package e2e_test

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

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/stack"
)

// scene is where an intruder is let loose, and what of it must stay as it is.
type scene struct {
	*system

	intruder natsauth.AgentCredentials
	// project is the intruder's.
	project int64
	// bystander works on meanwhile. Its ticks and its pulling are not held against the intruder.
	bystander int64
	// victim has been stopped, so that of it nothing at all changes by itself.
	victim     natsauth.AgentCredentials
	workspaces []*workspace
	// own is the intruder's workspace: something of its own to be sent.
	own  *workspace
	ears map[string]*ear
}

// may says what the intruder may change, directly or by making the state service tell of it.
func (s *scene) may(subject string) bool {
	rest := strings.TrimPrefix(subject, topology.Root+"."+string(stack.Cell)+".")
	own := strconv.FormatInt(s.intruder.AgentID, 10)
	for _, prefix := range []string{
		"observed." + own + ".", "applied." + own + ".", "dead.state.observed." + own + ".", "dead.state.applied." + own + ".", "dead.deploys.observed." + own + ".", "control." + own + ".",
		"workspace." + strconv.FormatInt(s.project, 10) + ".",
		// What it shows as its own and is no workspace of its: orphans, which belong to no project.
		"workspace.0.",
		fmt.Sprintf("observed.%d.tick", s.bystander),
		// What it says of its own cluster's rollouts.
		"deploy." + elsewhere + ".",
	} {
		if strings.HasPrefix(rest, prefix) {
			return true
		}
	}
	return false
}

// evidence is everything that an intruder must not have changed, as an operator sees it.
func (s *scene) evidence() map[string]any {
	s.t.Helper()
	found := map[string]any{}
	streams := s.js.ListStreams(s.t.Context())
	for info := range streams.Info() {
		s.ofStream(found, info)
	}
	require.NoError(s.t, streams.Err())
	for _, w := range s.workspaces {
		shown, err := s.api.Workspaces.GetWorkspace(s.t.Context(), connect.NewRequest(&statev1.GetWorkspaceRequest{Workspace: w.reference()}))
		require.NoError(s.t, err)
		found["workspace "+w.name] = protojson.Format(shown.Msg.GetWorkspace())
	}
	for name, ear := range s.ears {
		found["heard at "+name] = ear.all()
	}
	return found
}

func (s *scene) ofStream(found map[string]any, info *jetstream.StreamInfo) {
	s.t.Helper()
	ctx, name := s.t.Context(), info.Config.Name
	found["stream "+name] = []any{info.Config, info.Created}
	stream, err := s.js.Stream(ctx, name)
	require.NoError(s.t, err)
	details, err := stream.Info(ctx, jetstream.WithSubjectFilter(">"))
	require.NoError(s.t, err)
	for subject, count := range details.State.Subjects {
		if s.may(subject) {
			continue
		}
		last, err := stream.GetLastMsgForSubject(ctx, subject)
		require.NoError(s.t, err)
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
		case strconv.FormatInt(s.intruder.AgentID, 10):
			found[name+" "+consumer.Name] = []any{consumer.Config, consumer.Created}
		case strconv.FormatInt(s.bystander, 10):
			found[name+" "+consumer.Name] = []any{consumer.Config, consumer.Created, consumer.Delivered.Stream, consumer.AckFloor.Stream, consumer.Paused}
		default:
			if consumer.Config.Durable == "" && !strings.Contains(consumer.Name, evil) {
				continue // the state service's own, which moves on
			}
			found[name+" "+consumer.Name] = []any{
				consumer.Config, consumer.Created, consumer.Delivered.Consumer, consumer.Delivered.Stream, consumer.AckFloor.Stream, consumer.Paused,
				consumer.NumAckPending, consumer.NumRedelivered, consumer.NumPending, consumer.NumWaiting,
			}
		}
	}
	require.NoError(s.t, consumers.Err())
}

// principal connects as one of the control plane.
func (s *system) principal(name string) *nats.Conn {
	s.t.Helper()
	key, err := nats.NkeyOptionFromSeed(natsauth.SeedFile(s.Dir()+"/nats", name))
	require.NoError(s.t, err)
	conn, err := nats.Connect(s.NATS().ClientURL(), key, nats.CustomInboxPrefix(natsauth.InboxPrefix(name)))
	require.NoError(s.t, err)
	s.t.Cleanup(conn.Close)
	return conn
}

// subjects are all that streams hold now and the intruder may not change.
func (s *scene) subjects() []string {
	s.t.Helper()
	var all []string
	for _, declared := range topology.Streams() {
		stream, err := s.js.Stream(s.t.Context(), declared.Name)
		require.NoError(s.t, err)
		details, err := stream.Info(s.t.Context(), jetstream.WithSubjectFilter(">"))
		require.NoError(s.t, err)
		for subject := range details.State.Subjects {
			if !s.may(subject) {
				all = append(all, subject)
			}
		}
	}
	slices.Sort(all)
	return all
}
