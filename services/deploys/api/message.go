package api

import (
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.internal/schemas/gen/events"
	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
	"lockstep.internal/services/deploys/history"
	"lockstep.internal/services/deploys/postgres"
)

func stateNames() map[deploysv1.RolloutState]string {
	return map[deploysv1.RolloutState]string{
		deploysv1.RolloutState_ROLLOUT_STATE_RUNNING:    history.Running,
		deploysv1.RolloutState_ROLLOUT_STATE_COMPLETED:  history.Completed,
		deploysv1.RolloutState_ROLLOUT_STATE_SUPERSEDED: history.Superseded,
		deploysv1.RolloutState_ROLLOUT_STATE_CANCELLED:  history.Cancelled,
		deploysv1.RolloutState_ROLLOUT_STATE_UNKNOWN:    history.Unknown,
	}
}

func changeNames() map[deploysv1.Change]string {
	return map[deploysv1.Change]string{
		deploysv1.Change_CHANGE_CREATED:     string(events.ChangeCreated),
		deploysv1.Change_CHANGE_UPDATED:     string(events.ChangeUpdated),
		deploysv1.Change_CHANGE_ROLLED_BACK: string(events.ChangeRolledBack),
		deploysv1.Change_CHANGE_RESTARTED:   string(events.ChangeRestarted),
	}
}

// named returns the enum value of a name, or the unspecified value for an unknown name.
func named[E comparable](names map[E]string, name string) E {
	var unspecified E
	for value, n := range names {
		if n == name {
			return value
		}
	}
	return unspecified
}

func rolloutMessage(r *history.Rollout) *deploysv1.Rollout {
	out := &deploysv1.Rollout{
		Id: r.ID,
		Workload: &deploysv1.Workload{
			ClusterUid: r.ClusterUID,
			Namespace:  r.Namespace,
			Kind:       r.Kind,
			Name:       r.Name,
			Uid:        r.UID,
			AgentId:    r.AgentID,
			Deleted:    r.WorkloadDeleted,
		},
		Revision:     r.Revision,
		TemplateHash: r.TemplateHash,
		Change:       named(changeNames(), r.Change),
		OfRevision:   r.OfRevision,
		State:        named(stateNames(), value(r.State)),
		Images:       imageMessages(r.Images), PreviousImages: imageMessages(r.PreviousImages), Strategy: r.Strategy,
		StartedAt: timestamppb.New(r.StartedAt), StartedObservedAt: timestamppb.New(r.StartedObservedAt),
		EndedAt: timestamp(r.EndedAt), EndedObservedAt: timestamp(r.EndedObservedAt), DrainedAt: timestamp(r.DrainedAt),
		Counts: countsMessage(r.Counts), ReplicasAtStart: int32(r.ReplicasAtStart), ScaledDuring: r.ScaledDuring,
		Stalled:       value(r.Stalled),
		Blocked:       value(r.Blocked),
		Paused:        value(r.Paused),
		Reason:        value(r.Reason),
		Message:       value(r.Message),
		SupersededBy:  value(r.SupersededBy),
		Reconstructed: value(r.Reconstructed),
		Commit:        r.Commit,
		UpdatedAt:     timestamppb.New(r.UpdatedAt),
		Labels:        r.Labels, Group: r.Group,
	}
	if r.DurationMs != nil {
		out.Duration = durationpb.New(time.Duration(*r.DurationMs) * time.Millisecond)
	}
	return out
}

func scalingMessage(f *events.DeployFact) *deploysv1.Scaling {
	w := &f.Workload
	out := &deploysv1.Scaling{
		Workload: &deploysv1.Workload{
			ClusterUid: w.ClusterUID, Namespace: w.Namespace, Kind: w.Kind, Name: w.Name, Uid: w.UID,
			AgentId: int64(w.AgentID),
		},
		Completed: f.Fact == events.FactScaleCompleted, ObservedAt: timestamppb.New(f.ObservedAt),
	}
	if f.Scale != nil {
		out.From, out.To = int32(f.Scale.From), int32(f.Scale.To)
	}
	return out
}

func imageMessages(images []events.Image) []*deploysv1.Image {
	out := make([]*deploysv1.Image, len(images))
	for i := range images {
		out[i] = &deploysv1.Image{Container: images[i].Container, Image: images[i].Image}
	}
	return out
}

func countsMessage(c *events.Counts) *deploysv1.Counts {
	if c == nil {
		return nil
	}
	out := &deploysv1.Counts{
		Desired:     int32(c.Desired),
		Total:       int32(c.Total),
		Updated:     int32(c.Updated),
		Ready:       int32(c.Ready),
		Available:   int32(c.Available),
		Unavailable: int32(c.Unavailable),
	}
	if c.Terminating != nil {
		out.Terminating = new(int32(*c.Terminating))
	}
	return out
}

func factMessage(f *postgres.Fact) (*deploysv1.Fact, error) {
	var fact events.DeployFact
	if err := json.Unmarshal([]byte(f.Data), &fact); err != nil {
		return nil, fmt.Errorf("read fact %s: %w", f.ID, err)
	}
	return &deploysv1.Fact{
		Id:             f.ID,
		Fact:           f.Fact,
		Sequence:       f.Sequence,
		Ordinal:        int64(fact.Ordinal),
		OccurredAt:     timestamppb.New(f.OccurredAt),
		ObservedAt:     timestamppb.New(f.ObservedAt),
		Reason:         fact.Reason,
		Message:        fact.Message,
		Counts:         countsMessage(fact.Counts),
		Reconstructed:  fact.Provenance == events.ProvenanceReconstructed,
		StreamSequence: uint64(max(f.StreamSequence, 0)), Json: f.Data,
	}, nil
}

// value returns *pointer, or the zero value for nil.
func value[T any](pointer *T) T {
	if pointer == nil {
		var zero T
		return zero
	}
	return *pointer
}

func timestamp(t *time.Time) *timestamppb.Timestamp {
	if t == nil {
		return nil
	}
	return timestamppb.New(*t)
}
