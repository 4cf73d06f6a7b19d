package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/stack"
)

// chapter is what a workspace's events told between two points: the actual states that it was in, in order, and the wishes.
type chapter struct {
	states []events.ActualState
	wishes []events.WorkspaceDesiredStateChanged
	drifts []events.WorkspaceDrifted
	// warnings are those of ends to come.
	warnings []events.WorkspaceExpiryWarning
	// ids are those of all the events.
	ids []string
}

// storyteller reads one workspace's events from the stream WORKSPACES, from the first on.
type storyteller struct {
	w        *workspace
	messages jetstream.MessagesContext
}

func (w *workspace) follow() *storyteller {
	w.t.Helper()
	stream, err := w.s.js.Stream(w.t.Context(), topology.StreamWorkspaces)
	require.NoError(w.t, err)
	consumer, err := stream.OrderedConsumer(w.t.Context(), jetstream.OrderedConsumerConfig{FilterSubjects: []string{stack.Cell.WorkspaceAll(w.project, w.id)}})
	require.NoError(w.t, err)
	messages, err := consumer.Messages()
	require.NoError(w.t, err)
	w.t.Cleanup(messages.Stop)
	return &storyteller{w: w, messages: messages}
}

// through reads on until the workspace is in the state.
func (s *storyteller) through(state events.ActualState) chapter {
	t := s.w.t
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var told chapter
	for {
		msg, err := s.messages.Next(jetstream.NextContext(ctx))
		if errors.Is(err, jetstream.ErrNoHeartbeat) {
			continue // the server is being restarted
		}
		require.NoError(t, err, "workspace %s: no event says %s after %+v", s.w.name, state, told)
		e, err := event.Decode(msg.Headers(), msg.Data())
		require.NoError(t, err)
		told.ids = append(told.ids, e.ID())
		switch e.Type() {
		case events.TypeWorkspaceCreated:
			told.states = append(told.states, decode[events.WorkspaceCreated](t, e).ActualState)
		case events.TypeWorkspaceDesiredStateChanged:
			told.wishes = append(told.wishes, decode[events.WorkspaceDesiredStateChanged](t, e))
		case events.TypeWorkspaceDrifted:
			told.drifts = append(told.drifts, decode[events.WorkspaceDrifted](t, e))
		case events.TypeWorkspaceExpiryWarning:
			told.warnings = append(told.warnings, decode[events.WorkspaceExpiryWarning](t, e))
		case events.TypeWorkspaceStateChanged:
			changed := decode[events.WorkspaceStateChanged](t, e)
			if len(told.states) == 0 || told.states[len(told.states)-1] != changed.To { // its reason may change alone
				told.states = append(told.states, changed.To)
			}
			if changed.To == state {
				return told
			}
		default:
			require.Fail(t, "an event of another kind", e.Type())
		}
	}
}

// requirePath checks that states are those of a path, of which all may be skipped but the first and the last.
func requirePath(t *testing.T, states []events.ActualState, path ...events.ActualState) {
	t.Helper()
	require.NotEmpty(t, states)
	require.Equal(t, path[0], states[0], "%v begins the path %v", states, path)
	require.Equal(t, path[len(path)-1], states[len(states)-1], "%v ends the path %v", states, path)
	rest := path
	for _, state := range states {
		at := slices.Index(rest, state)
		require.GreaterOrEqual(t, at, 0, "%v follows the path %v", states, path)
		rest = rest[at+1:]
	}
}

func decode[T any](t *testing.T, e event.Event) T {
	t.Helper()
	var data T
	require.NoError(t, json.Unmarshal(e.Data(), &data))
	return data
}

// history is the ids of the workspace's events as the API lists them.
func (w *workspace) history() []string {
	w.t.Helper()
	var all []string
	for token := ""; ; {
		response, err := w.s.api.Workspaces.ListWorkspaceEvents(w.t.Context(), connect.NewRequest(&statev1.ListWorkspaceEventsRequest{
			Workspace: w.reference(), PageSize: 2, PageToken: token,
		}))
		require.NoError(w.t, err)
		all = append(all, idsOf(response.Msg.GetEvents())...)
		if token = response.Msg.GetNextPageToken(); token == "" {
			return all
		}
	}
}

func idsOf(told []*statev1.WorkspaceEvent) []string {
	ids := make([]string, len(told))
	for i, e := range told {
		ids[i] = e.GetId()
	}
	return ids
}

// story is the history for a test that fails.
func (w *workspace) story() string {
	response, err := w.s.api.Workspaces.ListWorkspaceEvents(context.WithoutCancel(w.t.Context()), connect.NewRequest(&statev1.ListWorkspaceEventsRequest{Workspace: w.reference()}))
	if err != nil {
		return fmt.Sprintf("its events cannot be read: %v", err)
	}
	var lines []string
	for _, e := range response.Msg.GetEvents() {
		lines = append(lines, e.GetTime().AsTime().Format("15:04:05.000")+" "+e.GetCloudEvent())
	}
	return strings.Join(lines, "\n")
}
