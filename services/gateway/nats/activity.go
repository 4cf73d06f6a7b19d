package nats

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/gateway/activity"
)

// activityInterval is how often the publisher looks for records.
const activityInterval = 2 * time.Second

// ActivityPublisher publishes what people do in workspaces on the stream ACTIVITY.
type ActivityPublisher struct {
	JetStream jetstream.JetStream
	Cell      topology.Cell
	Table     *activity.Table
	Logger    *slog.Logger
}

// Run publishes until ctx ends, and then once more within drain.
func (p ActivityPublisher) Run(ctx, drain context.Context) error {
	ticker := time.NewTicker(activityInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			p.publishDue(ctx)
		case <-ctx.Done():
			p.publishDue(drain)
			return nil
		}
	}
}

// publishDue publishes what is due. What cannot be published is due again.
func (p ActivityPublisher) publishDue(ctx context.Context) {
	for _, r := range p.Table.Take() {
		if err := p.publish(ctx, r); err != nil {
			p.Table.Return(r)
			p.Logger.WarnContext(ctx, "activity was not published; retrying",
				slog.String(logkey.WorkspaceID, r.WorkspaceID), logkey.Error(err))
		}
	}
}

func (p ActivityPublisher) publish(ctx context.Context, r activity.Record) error {
	return p.publishEvent(ctx, events.TypeActivityWorkspace, r.WorkspaceID, r.InputAt, events.ActivityWorkspace{
		WorkspaceID: r.WorkspaceID, UserID: int(r.UserID), InputAt: r.InputAt.UTC(), Sessions: r.Sessions,
		ReceivedBytes: int(r.ReceivedBytes), SentBytes: int(r.SentBytes),
	})
}

func (p ActivityPublisher) publishEvent(
	ctx context.Context, eventType, workspace string, at time.Time, data any,
) error {
	e, err := event.New(event.Attributes{
		Source: event.ServiceSource(string(p.Cell), serviceName), Type: eventType,
		Subject: workspace, ID: uuid.Must(uuid.NewV7()).String(), Time: at,
	}, data)
	if err != nil {
		return fmt.Errorf("encode activity: %w", err)
	}
	m, err := event.Encode(e, p.Cell.Activity(workspace))
	if err != nil {
		return fmt.Errorf("encode activity: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if _, err := p.JetStream.PublishMsg(ctx, m); err != nil {
		return fmt.Errorf("publish activity: %w", err)
	}
	return nil
}

const serviceName = "gateway"
