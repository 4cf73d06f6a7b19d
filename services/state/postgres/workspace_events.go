package postgres

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/outbox"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/domain"
	"lockstep.internal/services/state/render"
)

// tell has the batch, which is sent within the transaction, put what changed into the outbox. A zero Before is a workspace that was just created.
func (s *Workspaces) tell(ctx context.Context, batch *pgx.Batch, savings []Saving) error {
	var messages []*nats.Msg
	for _, saving := range savings {
		told, err := s.messages(ctx, saving)
		if err != nil {
			return err
		}
		messages = append(messages, told...)
	}
	if err := outbox.Queue(batch, messages...); err != nil {
		return fmt.Errorf("queue events of %d workspaces: %w", len(savings), err)
	}
	return nil
}

func (s *Workspaces) messages(ctx context.Context, saving Saving) ([]*nats.Msg, error) {
	var before *domain.Workspace
	if saving.Before.ID != uuid.Nil {
		before = &saving.Before
	}
	after := saving.After
	var messages []*nats.Msg
	if before == nil || before.DesiredRevision != after.DesiredRevision {
		desired, err := s.desired(ctx, after)
		if err != nil {
			return nil, err
		}
		logged := &nats.Msg{Subject: s.Cell.DesiredLog(after.AgentID, after.ID.String()), Header: desired.Header, Data: desired.Data}
		messages = append(messages, desired, logged)
	}
	if after.ActualState == actualstate.Terminated && (before == nil || before.ActualState != actualstate.Terminated) {
		desired, err := s.desired(ctx, after)
		if err != nil {
			return nil, err
		}
		fade(desired)
		messages = append(messages, desired)
	}
	for _, change := range domain.Changes(before, after) {
		if change.Unexpected && s.Unexpected != nil {
			s.Unexpected(before.ActualState, after.ActualState)
		}
		m, err := message(ctx, s.Cell, event.Attributes{
			Type: event.TypePrefix + "workspace." + change.Name + ".v1", Subject: after.ID.String(), ID: change.ID, Time: change.Time,
		}, s.Cell.Workspace(after.ProjectID, after.ID.String(), change.Name), change.Data)
		if err != nil {
			return nil, err
		}
		messages = append(messages, m)
	}
	return messages, nil
}

// desired is the message that tells the dispatcher what the workspace shall be.
func (s *Workspaces) desired(ctx context.Context, w domain.Workspace) (*nats.Msg, error) {
	data, err := render.Encoded(w, s.Render)
	if err != nil {
		return nil, fmt.Errorf("tell the dispatcher: %w", err)
	}
	return message(ctx, s.Cell, event.Attributes{
		Type: events.TypeDesiredWorkspace, Subject: w.ID.String(), ID: w.ID.String() + "/dispatch/" + strconv.FormatInt(w.DesiredRevision, 10),
		Time: w.DesiredStateChangedAt,
	}, s.Cell.Desired(w.AgentID, w.ID.String()), data)
}

// fadeAfter is how long a dispatcher is still told what is gone for good: long enough for whoever reads the stream just now.
const fadeAfter = time.Hour

// fade lets a message go away by itself, so that the stream does not grow with all that has ever been. Until then, who reads it finds nothing to delete.
func fade(m *nats.Msg) { m.Header[jetstream.MsgTTLHeader] = []string{fadeAfter.String()} }

// message is an event of this service as a message, with the trace that it belongs to.
func message(ctx context.Context, cell topology.Cell, a event.Attributes, subject string, data any) (*nats.Msg, error) {
	a.Source = event.ServiceSource(string(cell), "state")
	e, err := event.New(a, data)
	if err != nil {
		return nil, fmt.Errorf("tell on %s: %w", subject, err)
	}
	header := nats.Header{}
	telemetry.Inject(ctx, header)
	if parent := header[event.TraceParent]; len(parent) > 0 {
		e.SetExtension(event.TraceParent, parent[0])
	}
	m, err := event.Encode(e, subject)
	if err != nil {
		return nil, fmt.Errorf("tell on %s: %w", subject, err)
	}
	return m, nil
}

// TellAgain puts what every workspace shall be into the outbox once more, as it is: for a stream DESIRED, or a database, that was restored
// from an older copy. What was terminated is told for as long as a copy may remember it otherwise, and goes away again; what is gone for longer is left out.
func (s *Workspaces) TellAgain(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `
		select `+workspaceColumns+` from workspaces where actual_state <> 'terminated' or actual_state_changed_at > now() - interval '30 days'
		order by id for no key update`)
	if err != nil {
		return fmt.Errorf("lock every workspace: %w", err)
	}
	found, err := pgx.CollectRows(rows, scanWorkspace)
	if err != nil {
		return fmt.Errorf("lock every workspace: %w", err)
	}
	const at = 100 // manifests are large
	for len(found) > 0 {
		n := min(at, len(found))
		messages := make([]*nats.Msg, n)
		for i, w := range found[:n] {
			if messages[i], err = s.desired(ctx, w); err != nil {
				return err
			}
			if w.ActualState == actualstate.Terminated {
				fade(messages[i])
			}
		}
		if err := outbox.Insert(ctx, tx, messages...); err != nil {
			return fmt.Errorf("tell again of workspaces: %w", err)
		}
		found = found[n:]
	}
	return nil
}
