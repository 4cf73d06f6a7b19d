package e2e_test

import (
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/history"
	"lockstep.internal/libs/topology"
	"lockstep.internal/tools/replay"
	"lockstep.internal/tools/stack"
)

// record is one message of a stream.
type record struct {
	subject  string
	sequence uint64
	header   nats.Header
	data     []byte
}

// records reads what a stream holds now.
func (s *system) records(family string) []record {
	s.t.Helper()
	var all []record
	err := replay.Run(s.t.Context(), s.js, stack.Cell, replay.Options{Subject: family + ".>"}, func(msg jetstream.Msg, meta *jetstream.MsgMetadata) error {
		all = append(all, record{subject: msg.Subject(), sequence: meta.Sequence.Stream, header: msg.Headers(), data: msg.Data()})
		return nil
	})
	require.NoError(s.t, err, "read %s", family)
	return all
}

// told are records for judgement.
func told(all []record) []history.Record {
	judged := make([]history.Record, len(all))
	for i, r := range all {
		judged[i] = history.Record{Subject: r.subject, Sequence: r.sequence, Header: r.header, Data: r.data}
	}
	return judged
}

// requireSoundHistory reads everything that the system has told.
func requireSoundHistory(s *system) {
	s.t.Helper()
	requireSoundEvents(s)
	require.Empty(s.t, history.Workspaces(told(s.records(topology.FamilyWorkspace))))
}

// requireSoundEvents is requireSoundHistory for one of which a part was lost.
func requireSoundEvents(s *system) {
	t := s.t
	t.Helper()
	for _, stream := range topology.Streams() {
		all := s.records(stream.Family)
		switch stream.Name {
		case topology.StreamDead:
			for _, r := range all {
				t.Errorf("a service could not process a message: %s %v %s", r.subject, r.header, r.data)
			}
			continue
		case topology.StreamDeploys:
			require.Empty(t, history.Facts(stack.Cell, told(all)))
			continue
		case topology.StreamSinks: // what somebody asked for at a sink
			require.Empty(t, all)
			continue
		case topology.StreamControl, topology.StreamDirectory, topology.StreamDesired, topology.StreamAgents:
		case topology.StreamObserved, topology.StreamApplied, topology.StreamDesiredLog, topology.StreamWorkspaces:
			require.NotEmpty(t, all, "stream %s", stream.Name)
		default:
			require.Fail(t, "a stream that this test knows nothing of", stream.Name)
		}
		require.Empty(t, history.Events(stack.Cell, stream, told(all)))
	}
	s.secrets.requireKept(t, s)
}
