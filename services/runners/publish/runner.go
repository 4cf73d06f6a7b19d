package publish

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/event"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/runners/runner"
)

// deletedTTL is how long RUNNERS keeps the message of a deleted runner. Who was away for longer reads the stream from
// its start, and finds no such runner.
const deletedTTL = 24 * time.Hour

// Runner returns the message of a runner as it is since a time.
func (e Encoder) Runner(ctx context.Context, r runner.Runner, at time.Time) (*nats.Msg, error) {
	return e.runner(ctx, r, false, at)
}

// RunnerDeleted returns the message of a runner that was deleted at a time.
func (e Encoder) RunnerDeleted(ctx context.Context, r runner.Runner, at time.Time) (*nats.Msg, error) {
	r.Revision++
	m, err := e.runner(ctx, r, true, at)
	if err != nil {
		return nil, err
	}
	m.Header[jetstream.MsgTTLHeader] = []string{deletedTTL.String()}
	return m, nil
}

func (e Encoder) runner(ctx context.Context, r runner.Runner, deleted bool, at time.Time) (*nats.Msg, error) {
	subject, id := e.Cell.Runner(r.ID), strconv.FormatInt(r.ID, 10)
	m, err := e.encode(ctx, subject, event.Attributes{
		Type: events.TypeRunnerChanged, Subject: id, ID: id + "/" + strconv.FormatInt(r.Revision, 10), Time: at.UTC(),
	}, events.RunnerChanged{
		RunnerID: int(r.ID), Revision: int(r.Revision), Type: events.RunnerType(r.Type),
		OrganizationID: int(r.OrganizationID), GroupID: int(r.GroupID), ProjectIds: convert[int](r.ProjectIDs),
		Description: r.Description, Tags: r.Tags, RunUntagged: r.RunUntagged, Protected: r.Protected, Paused: r.Paused,
		Locked: r.Locked, UserIds: convert[int](r.UserIDs), GroupIds: convert[int](r.GroupIDs), Deleted: deleted,
	})
	if err != nil {
		return nil, fmt.Errorf("encode an event for %s: %w", subject, err)
	}
	return m, nil
}
