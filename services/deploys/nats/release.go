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
	"lockstep.internal/services/deploys/ownership"
)

// Releaser releases clusters from their projects. All fields are required.
type Releaser struct {
	JetStream jetstream.JetStream
	Cell      topology.Cell
}

// Release publishes the release of a cluster on OBSERVED: from the claim's project to another one, or to none if
// toProjectID is 0. It returns the stream position. The release takes effect when the reader processes it, unless the
// claim has changed before.
func (r *Releaser) Release(
	ctx context.Context, claim ownership.Claim, toProjectID, userID int64, reason string, at time.Time,
) (uint64, error) {
	at = at.UTC().Truncate(time.Millisecond)
	e, err := event.New(event.Attributes{
		Type: events.TypeObservedClusterReleased, Source: event.ServiceSource(string(r.Cell), serviceName),
		Subject: claim.ClusterUID,
		// All releases of one claim have the same id, so the stream stores only the first.
		ID: claim.ClusterUID + "/" + strconv.FormatUint(claim.Since, 10) + "/released", Time: at,
	}, events.ObservedClusterReleased{
		ClusterUID: claim.ClusterUID, ProjectID: int(claim.ProjectID), Since: int(claim.Since),
		ToProjectID: int(toProjectID), UserID: int(userID), Reason: reason, ReleasedAt: at,
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
