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
	d, ok := decoded.(*events.ActivityWorkspace)
	if !ok || subject != cell.Activity(d.WorkspaceID) {
		return Activity{}, fmt.Errorf("type %.200q: does not belong on %s", e.Type(), subject)
	}
	id := canonicalID(d.WorkspaceID)
	if id == uuid.Nil {
		return Activity{}, fmt.Errorf("workspace_id %.80q is not the id of a workspace", d.WorkspaceID)
	}
	at := workspace.Timestamp(d.InputAt)
	if at.Unix() <= 0 {
		return Activity{}, fmt.Errorf("input_at %s is not a time after 1970", at)
	}
	return Activity{workspace.Activity{At: at, UserID: int64(d.UserID)}, id}, nil
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
