package ingest

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/libs/workspaceagent"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/workspace"
)

const gatewayService = "gateway"

// Activity is a decoded event of ACTIVITY.
type Activity struct {
	workspace.Activity

	WorkspaceID uuid.UUID
}

// StoredAt bounds the gateway's time by the time at which the stream stored the event.
func (a *Activity) StoredAt(stored time.Time) {
	if a.At.After(stored) {
		a.At = workspace.Timestamp(stored)
	}
}

// ActivityStore holds what a batch of ACTIVITY changes.
type ActivityStore interface {
	// SaveActivity stores the activity of workspaces, unless a later one is stored. The ids are sorted.
	SaveActivity(ctx context.Context, activity []Activity) error
}

// DecodeActivity decodes a message of ACTIVITY.
func DecodeActivity(cell topology.Cell, subject string, header nats.Header, data []byte) (Activity, error) {
	e, err := event.Decode(header, data)
	if err != nil {
		return Activity{}, fmt.Errorf("event: %w", err)
	}
	if want := event.ServiceSource(string(cell), gatewayService); e.Source() != want {
		return Activity{}, fmt.Errorf("source %.200q is not allowed on %s: expected %s", e.Source(), subject, want)
	}
	decoded, err := events.DecodeAny(e.Type(), e.Data())
	if err != nil {
		return Activity{}, fmt.Errorf("data: %w", err)
	}
	switch d := decoded.(type) {
	case *events.ActivityWorkspace:
		return decodedActivity(cell, subject, d.WorkspaceID, "input_at",
			workspace.Activity{At: d.InputAt, UserID: int64(d.UserID)})
	case *events.ActivityProcesses:
		return decodedActivity(cell, subject, d.WorkspaceID, "worked_at",
			workspace.Activity{At: d.WorkedAt, Program: workspaceagent.CleanProgramName(d.Programs[0].Name)})
	default:
		return Activity{}, fmt.Errorf("type %.200q: does not belong on %s", e.Type(), subject)
	}
}

// decodedActivity checks what all events of ACTIVITY have: the workspace, and a time in a field.
func decodedActivity(
	cell topology.Cell, subject, workspaceID, field string, a workspace.Activity,
) (Activity, error) {
	if subject != cell.Activity(workspaceID) {
		return Activity{}, fmt.Errorf("workspace_id %.80q: does not belong on %s", workspaceID, subject)
	}
	id := canonicalID(workspaceID)
	if id == uuid.Nil {
		return Activity{}, fmt.Errorf("workspace_id %.80q is not the id of a workspace", workspaceID)
	}
	if a.At = workspace.Timestamp(a.At); a.At.Unix() <= 0 {
		return Activity{}, fmt.Errorf("%s %s is not a time after 1970", field, a.At)
	}
	return Activity{a, id}, nil
}

// HandleActivity processes a batch of ACTIVITY. Activity changes no desired state.
func HandleActivity(ctx context.Context, s ActivityStore, batch []Activity) error {
	last := make(map[uuid.UUID]Activity, len(batch))
	for _, a := range batch {
		if a.At.After(last[a.WorkspaceID].At) {
			last[a.WorkspaceID] = a
		}
	}
	sorted := slices.SortedFunc(maps.Values(last), func(a, b Activity) int {
		return bytes.Compare(a.WorkspaceID[:], b.WorkspaceID[:])
	})
	return s.SaveActivity(ctx, sorted)
}
