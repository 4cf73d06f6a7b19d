package nats

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/roster"
)

// Releaser takes clusters from their projects. Its fields are required.
type Releaser struct {
	JetStream jetstream.JetStream
	Cell      topology.Cell
}

// Release puts on the stream OBSERVED that a cluster is taken from the project that it is claimed by, and given to another, or to none where that is 0. It takes
// effect when the reader comes to it, unless the cluster is under another claim by then. It returns its position.
func (r *Releaser) Release(ctx context.Context, claim roster.Claim, toProjectID, userID int64, reason string, at time.Time) (uint64, error) {
	at = at.UTC().Truncate(time.Millisecond)
	e, err := event.New(event.Attributes{
		Type: events.TypeObservedClusterReleased, Source: event.ServiceSource(string(r.Cell), serviceName), Subject: claim.ClusterUID,
		// Of the same claim there is one release.
		ID: claim.ClusterUID + "/" + strconv.FormatUint(claim.Since, 10) + "/released", Time: at,
	}, events.ObservedClusterReleased{
		ClusterUID: claim.ClusterUID, ProjectID: int(claim.ProjectID), Since: int(claim.Since), ToProjectID: int(toProjectID), UserID: int(userID), Reason: reason, ReleasedAt: at,
	})
	if err != nil {
		return 0, fmt.Errorf("release cluster %q: %w", claim.ClusterUID, err)
	}
	msg, err := event.Encode(e, r.Cell.ObservedClusterReleased(claim.ClusterUID))
	if err != nil {
		return 0, fmt.Errorf("release cluster %q: %w", claim.ClusterUID, err)
	}
	ack, err := r.JetStream.PublishMsg(ctx, msg)
	if err != nil {
		return 0, fmt.Errorf("release cluster %q: %w", claim.ClusterUID, err)
	}
	return ack.Sequence, nil
}
