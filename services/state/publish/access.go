package publish

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/event"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/workspace"
)

// Access returns the message with what the gateway knows of a workspace. It expires if the workspace is terminated.
// Every message has a new id; the latest message of a workspace is valid.
func (e Encoder) Access(ctx context.Context, w workspace.Workspace) (*nats.Msg, error) {
	return e.access(ctx, w, accessOf(w))
}

// SSHKey returns the message with what the gateway knows of an SSH key. It expires if the key was removed. Every
// message has a new id; the latest message of a key is valid.
func (e Encoder) SSHKey(ctx context.Context, k directory.SSHKey, at time.Time) (*nats.Msg, error) {
	m, err := e.message(ctx, e.Cell.AccessSSHKey(k.ID()), event.Attributes{
		Type: events.TypeAccessSSHKey, Subject: k.ID(), ID: uuid.Must(uuid.NewV7()).String(), Time: at,
	}, k.Event())
	if err == nil && k.Removed {
		setTTL(m)
	}
	return m, err
}

func (e Encoder) access(ctx context.Context, w workspace.Workspace, data events.AccessWorkspace) (*nats.Msg, error) {
	at := w.DesiredStateChangedAt
	if w.ActualStateChangedAt.After(at) {
		at = w.ActualStateChangedAt
	}
	id := w.ID.String()
	m, err := e.message(ctx, e.Cell.AccessWorkspace(id), event.Attributes{
		Type: events.TypeAccessWorkspace, Subject: id, ID: uuid.Must(uuid.NewV7()).String(), Time: at,
	}, data)
	if err == nil && data.Deleted {
		setTTL(m)
	}
	return m, err
}

func accessOf(w workspace.Workspace) events.AccessWorkspace {
	data := events.AccessWorkspace{
		WorkspaceID: w.ID.String(), Name: w.Name, Namespace: w.Namespace, ProjectID: int(w.ProjectID),
		AgentID: int(w.AgentID), UserID: int(w.UserID), ActualState: events.ActualState(w.ActualState),
		Deleted: w.ActualState == actualstate.Terminated, CountsProcesses: w.CountsProcesses,
	}
	for _, s := range w.Shares {
		share := events.AccessShare{UserID: int(s.UserID)}
		if s.Port != 0 {
			share.Port = new(int(s.Port))
		}
		data.Shares = append(data.Shares, share)
	}
	for _, p := range w.Spec.Ports {
		data.Ports = append(data.Ports, events.AccessPort{Name: p.Name, Number: int(p.Number)})
	}
	if e := w.Spec.Editor; e != nil {
		data.Ports = append(data.Ports, events.AccessPort{Name: workspace.EditorPortName, Number: int(e.Port)})
	}
	return data
}
