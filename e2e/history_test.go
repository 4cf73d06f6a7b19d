package e2e_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
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

// requireSoundHistory reads everything that the system has told.
func requireSoundHistory(s *system) {
	t := s.t
	t.Helper()
	for _, stream := range topology.Streams() {
		all := s.records(stream.Family)
		switch stream.Name {
		case topology.StreamDead:
			for _, r := range all {
				t.Errorf("a service could not process a message: %s %v %s", r.subject, r.header, r.data)
			}
		case topology.StreamControl, topology.StreamDirectory, topology.StreamDesired:
			requireEvents(t, stream, all)
		case topology.StreamObserved, topology.StreamApplied, topology.StreamDesiredLog, topology.StreamWorkspaces:
			require.NotEmpty(t, all, "stream %s", stream.Name)
			requireEvents(t, stream, all)
		default:
			require.Fail(t, "a stream that this test knows nothing of", stream.Name)
		}
	}
	requireSoundStates(t, s.records(topology.FamilyWorkspace))
	s.secrets.requireKept(t, s)
}

// requireEvents checks that each message is what its type and its subject say, and that no workspace's desired revision ever goes down.
func requireEvents(t *testing.T, stream topology.Stream, all []record) {
	t.Helper()
	type revisions struct {
		WorkspaceID     string `json:"workspace_id"`
		DesiredRevision int    `json:"desired_revision"`
	}
	last := map[string]int{}
	ids := map[string]bool{}
	for _, r := range all {
		where := fmt.Sprintf("%s, sequence %d, %s", stream.Name, r.sequence, r.subject)
		e, err := event.Decode(r.header, r.data)
		require.NoError(t, err, where)
		require.NoError(t, events.Validate(e.Type(), e.Data()), where)
		known, found := events.Lookup(e.Type())
		require.True(t, found, where)
		require.Regexp(t, subjectPattern(known.Subject, stream.Family), r.subject, "%s: the subject of %s", where, e.Type())
		requireWriter(t, where, r.subject, e)
		key := e.Source() + " " + e.ID()
		if stream.Name == topology.StreamWorkspaces {
			require.False(t, ids[key], "%s: event %s is told twice", where, key)
		}
		ids[key] = true

		var data revisions
		require.NoError(t, json.Unmarshal(e.Data(), &data), where)
		if data.DesiredRevision > 0 {
			require.GreaterOrEqual(t, data.DesiredRevision, last[data.WorkspaceID], "%s: a desired revision goes down", where)
			last[data.WorkspaceID] = data.DesiredRevision
		}
	}
}

// subjectPattern is the subject of a type, with any token for its parameters.
func subjectPattern(subject, family string) *regexp.Regexp {
	// The log of desired states is a copy under another name.
	_, rest, _ := strings.Cut(subject, ".")
	pattern := regexp.QuoteMeta(stack.Cell.Prefix(family) + "." + rest)
	return regexp.MustCompile("^" + regexp.MustCompile(`\\\{[a-z]+\\\}`).ReplaceAllString(pattern, `[^.]+`) + "$")
}

// requireWriter checks that what is said in an agent's name was said by it.
func requireWriter(t *testing.T, where, subject string, e event.Event) {
	t.Helper()
	parsed, err := topology.Parse(subject)
	require.NoError(t, err, where)
	switch parsed.Family {
	case topology.FamilyObserved, topology.FamilyApplied:
		agent, err := parsed.Agent()
		require.NoError(t, err, where)
		component := map[string]string{topology.FamilyObserved: "watcher", topology.FamilyApplied: "dispatcher"}[parsed.Family]
		require.Equal(t, event.AgentSource(string(stack.Cell), agent, component), e.Source(), where)
	default:
		require.Equal(t, event.ServiceSource(string(stack.Cell), "state"), e.Source(), where)
	}
}

// requireSoundStates checks that each workspace's states follow from each other on a path of the state diagram, and that who is in trouble knows why.
func requireSoundStates(t *testing.T, all []record) {
	t.Helper()
	actual, desired := map[string]events.ActualState{}, map[string]events.DesiredState{}
	for _, r := range all {
		e, err := event.Decode(r.header, r.data)
		require.NoError(t, err)
		switch e.Type() {
		case events.TypeWorkspaceCreated:
			w := decode[events.WorkspaceCreated](t, e)
			require.NotContains(t, actual, w.WorkspaceID, "created twice")
			actual[w.WorkspaceID], desired[w.WorkspaceID] = w.ActualState, w.DesiredState
		case events.TypeWorkspaceStateChanged:
			w := decode[events.WorkspaceStateChanged](t, e)
			require.Equal(t, actual[w.WorkspaceID], w.From, "sequence %d: workspace %s changes from the state it was in", r.sequence, w.Name)
			require.False(t, w.Unexpected, "sequence %d: workspace %s changes from %s to %s", r.sequence, w.Name, w.From, w.To)
			if w.To == events.ActualStateFailed || w.To == events.ActualStateError {
				require.NotEmpty(t, w.Reason, "sequence %d", r.sequence)
				require.NotEmpty(t, w.Message, "sequence %d", r.sequence)
			}
			actual[w.WorkspaceID] = w.To
		case events.TypeWorkspaceDesiredStateChanged:
			w := decode[events.WorkspaceDesiredStateChanged](t, e)
			require.Equal(t, desired[w.WorkspaceID], w.From, "sequence %d: workspace %s", r.sequence, w.Name)
			desired[w.WorkspaceID] = w.To
		}
	}
}
