// Package publish makes the messages that the state service publishes: it renders manifests, encodes
// events and chooses subjects. It is pure, except that the events of DIRECTORY and ACCESS get new ids: the caller puts
// the messages into the outbox, in the transaction of the change, and the outbox publishes them in order per subject,
// per workspace and per agent.
// Only the message of ObservationsRead is published directly.
package publish

import (
	"context"
	"fmt"
	"reflect"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/orphan"
	"lockstep.internal/services/state/render"
	"lockstep.internal/services/state/workspace"
)

// terminatedTTL is how long DESIRED and ACCESS keep the message of a terminated workspace or deleted orphan. A
// dispatcher that starts after the message has expired finds no objects to delete.
const terminatedTTL = time.Hour

// Encoder encodes the messages of one cell. Its methods add the trace of the context to each message.
type Encoder struct {
	Cell topology.Cell
}

// Configurations are the configurations of agents by id.
type Configurations map[int64]agent.Configuration

// Workspaces returns the messages of several updates, in their order. It needs the configurations of the agents of
// updates that render manifests. The fault payload_too_large reports a new spec with manifests that are too large.
func (e Encoder) Workspaces(
	ctx context.Context, configured Configurations, updates ...workspace.Update,
) ([]*nats.Msg, error) {
	var messages []*nats.Msg
	for _, u := range updates {
		more, err := e.workspace(ctx, configured, u)
		if err != nil {
			return nil, err
		}
		messages = append(messages, more...)
	}
	return messages, nil
}

// workspace returns the messages of an update: a new desired revision to DESIRED and DESIRED_LOG, the desired state
// once more with a TTL when the workspace has terminated, what has changed for the gateway to ACCESS, and the public
// events to WORKSPACES.
func (e Encoder) workspace(
	ctx context.Context, configured Configurations, u workspace.Update,
) ([]*nats.Msg, error) {
	var messages []*nats.Msg
	w := u.After
	becameTerminated := w.ActualState == actualstate.Terminated && u.Before.ActualState != actualstate.Terminated
	if w.DesiredRevision != u.Before.DesiredRevision {
		desired, err := e.desired(ctx, configured, w)
		if err != nil {
			return nil, err
		}
		if u.SpecChanged() {
			if err := render.CheckSize(w.Name, desired.Data); err != nil {
				return nil, err
			}
		}
		log := &nats.Msg{Subject: e.Cell.DesiredLog(w.AgentID, w.ID.String()), Header: desired.Header, Data: desired.Data}
		messages = append(messages, desired, log)
	}
	if becameTerminated {
		desired, err := e.Desired(ctx, configured, w)
		if err != nil {
			return nil, err
		}
		messages = append(messages, desired)
	}
	if access := accessOf(w); w.DesiredRevision != u.Before.DesiredRevision ||
		!reflect.DeepEqual(access, accessOf(u.Before)) {
		m, err := e.access(ctx, w, access)
		if err != nil {
			return nil, err
		}
		messages = append(messages, m)
	}
	for _, ev := range u.Events {
		m, err := e.workspaceEvent(ctx, w.ProjectID, w.ID.String(), ev)
		if err != nil {
			return nil, err
		}
		messages = append(messages, m)
	}
	return messages, nil
}

// Desired returns the message with the desired state of a workspace. It expires if the workspace is
// terminated, so that DESIRED does not grow forever.
func (e Encoder) Desired(
	ctx context.Context, configured Configurations, w workspace.Workspace,
) (*nats.Msg, error) {
	m, err := e.desired(ctx, configured, w)
	if err == nil && w.ActualState == actualstate.Terminated {
		setTTL(m)
	}
	return m, err
}

func (e Encoder) desired(
	ctx context.Context, configured Configurations, w workspace.Workspace,
) (*nats.Msg, error) {
	configuration, known := configured[w.AgentID]
	if !known && w.DesiredState != workspace.DesiredTerminated {
		return nil, fmt.Errorf("desired state: the configuration of agent %d is missing", w.AgentID)
	}
	data, err := render.Desired(w, configuration.Manifests)
	if err != nil {
		return nil, fmt.Errorf("desired state: %w", err)
	}
	id := w.ID.String()
	return e.message(ctx, e.Cell.Desired(w.AgentID, id), event.Attributes{
		Type: events.TypeDesiredWorkspace, Subject: id, ID: desiredEventID(id, w.DesiredRevision),
		Time: w.DesiredStateChangedAt,
	}, data)
}

// FoundOrphan returns the public event of a new orphan.
func (e Encoder) FoundOrphan(ctx context.Context, o orphan.Orphan, clusterUID string) (*nats.Msg, error) {
	return e.workspaceEvent(ctx, 0, o.Label, o.Found(clusterUID))
}

// Orphan returns the messages of an update: the request to delete to DESIRED, and the public event of the
// deletion.
func (e Encoder) Orphan(ctx context.Context, u orphan.Update) ([]*nats.Msg, error) {
	if !u.Dispatches() && !u.Completes() {
		return nil, nil
	}
	o := u.After
	desired, err := e.message(ctx, e.Cell.Desired(o.AgentID, o.Label), event.Attributes{
		Type: events.TypeDesiredWorkspace, Subject: o.Label, ID: desiredEventID(o.Label, o.DesiredRevision), Time: u.At,
	}, render.DeletedOrphan(o))
	if err != nil || !u.Completes() {
		return []*nats.Msg{desired}, err
	}
	setTTL(desired)
	deleted, err := e.workspaceEvent(ctx, 0, o.Label, o.DeletedEvent())
	return []*nats.Msg{desired, deleted}, err
}

// Entries returns the messages of directory entries. Every message has a new id; the latest message of a key is
// valid.
func (e Encoder) Entries(ctx context.Context, at time.Time, entries ...directory.Entry) ([]*nats.Msg, error) {
	messages := make([]*nats.Msg, len(entries))
	for i, entry := range entries {
		var err error
		if messages[i], err = e.entry(ctx, entry, at); err != nil {
			return nil, err
		}
	}
	return messages, nil
}

func (e Encoder) entry(ctx context.Context, entry directory.Entry, at time.Time) (*nats.Msg, error) {
	return e.message(ctx, e.Cell.Directory(entry.Kind, entry.Key), event.Attributes{
		Type: event.TypePrefix + "directory." + entry.Kind + ".v1", Subject: entry.Kind + "/" + entry.Key,
		ID: uuid.Must(uuid.NewV7()).String(), Time: at,
	}, entry.Data)
}

// AgentConfig returns the message that configures an agent.
func (e Encoder) AgentConfig(ctx context.Context, a agent.Agent, at time.Time) (*nats.Msg, error) {
	return e.message(ctx, e.Cell.ControlConfig(a.ID), event.Attributes{
		Type: events.TypeAgentConfig, Subject: agentSubject(a.ID),
		ID: fmt.Sprintf("%s/configuration/%d", agentSubject(a.ID), a.ConfigurationRevision), Time: at,
	}, a.ConfigEvent())
}

// AgentBlocked returns the message that reports the block of an agent.
func (e Encoder) AgentBlocked(ctx context.Context, agentID int64, b agent.Block) (*nats.Msg, error) {
	return e.message(ctx, e.Cell.AgentBlocked(agentID), event.Attributes{
		Type: events.TypeAgentBlocked, Subject: agentSubject(agentID),
		ID: fmt.Sprintf("%s/blocked/%d", agentSubject(agentID), b.At.UnixMilli()), Time: b.At,
	}, b.Event(agentID))
}

// AgentSilent returns the message that reports that an agent is silent.
func (e Encoder) AgentSilent(ctx context.Context, s agent.Silence, at time.Time) (*nats.Msg, error) {
	return e.message(ctx, e.Cell.AgentSilent(s.AgentID), event.Attributes{
		Type: events.TypeAgentSilent, Subject: agentSubject(s.AgentID),
		ID: fmt.Sprintf("%s/silent/%d", agentSubject(s.AgentID), s.Since.UnixMilli()), Time: at,
	}, s.SilentEvent())
}

// AgentReturned returns the message that reports that a silent agent reports again.
func (e Encoder) AgentReturned(ctx context.Context, s agent.Silence) (*nats.Msg, error) {
	return e.message(ctx, e.Cell.AgentReturned(s.AgentID), event.Attributes{
		Type: events.TypeAgentReturned, Subject: agentSubject(s.AgentID),
		ID: fmt.Sprintf("%s/returned/%d", agentSubject(s.AgentID), s.Since.UnixMilli()), Time: s.Until,
	}, s.ReturnedEvent())
}

// ResyncRequest returns the message that requests a full resync from an agent.
func (e Encoder) ResyncRequest(
	ctx context.Context, agentID int64, nonce string, cause events.ResyncRequestCause, at time.Time,
) (*nats.Msg, error) {
	return e.message(ctx, e.Cell.ControlResync(agentID), event.Attributes{
		Type: events.TypeResyncRequested, Subject: agentSubject(agentID), ID: nonce, Time: at,
	}, events.ResyncRequested{Nonce: nonce, Cause: cause})
}

// ObservationsRead returns the message that reports to an agent how far OBSERVED is processed.
func (e Encoder) ObservationsRead(
	ctx context.Context, agentID int64, sequence uint64, at time.Time,
) (*nats.Msg, error) {
	return e.message(ctx, e.Cell.ControlRead(agentID), event.Attributes{
		Type: events.TypeObservationsRead, Subject: agentSubject(agentID),
		ID: fmt.Sprintf("%s/read/%d", agentSubject(agentID), sequence), Time: at,
	}, events.ObservationsRead{Sequence: int(sequence)})
}

func (e Encoder) workspaceEvent(
	ctx context.Context,
	projectID int64,
	id string,
	ev workspace.Event,
) (*nats.Msg, error) {
	return e.message(ctx, e.Cell.Workspace(projectID, id, ev.Name), event.Attributes{
		Type: event.TypePrefix + "workspace." + ev.Name + ".v1", Subject: id, ID: ev.ID, Time: ev.Time,
	}, ev.Data)
}

func (e Encoder) message(ctx context.Context, subject string, a event.Attributes, data any) (*nats.Msg, error) {
	a.Source = event.ServiceSource(string(e.Cell), "state")
	made, err := event.New(a, data)
	if err != nil {
		return nil, fmt.Errorf("encode an event for %s: %w", subject, err)
	}
	header := nats.Header{}
	telemetry.Inject(ctx, header)
	if parent := header[event.TraceParent]; len(parent) > 0 {
		made.SetExtension(event.TraceParent, parent[0])
	}
	m, err := event.Encode(made, subject)
	if err != nil {
		return nil, fmt.Errorf("encode an event for %s: %w", subject, err)
	}
	return m, nil
}

func setTTL(m *nats.Msg) { m.Header[jetstream.MsgTTLHeader] = []string{terminatedTTL.String()} }

func agentSubject(id int64) string { return fmt.Sprintf("agent/%d", id) }

func desiredEventID(workspaceID string, revision int64) string {
	return workspaceID + "/dispatch/" + strconv.FormatInt(revision, 10)
}
