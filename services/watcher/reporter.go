package watcher

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/kube"
)

const (
	component = "watcher"
	// digestBytes is how much of the SHA-256 of its content an event's id carries.
	digestBytes = 8
)

// Fact is an event and the subject it is published on.
type Fact struct {
	Subject string
	Event   event.Event
}

// Reporter puts what one watcher saw into events. It is pure: the same sighting gives the same event. The zero value is not useful.
type Reporter struct {
	Cell       topology.Cell
	Agent      int64
	ClusterUID string
	// Scope that it reports: empty for the objects of workspaces, [ScopeWorkloads] for workloads.
	Scope string
	// Selection is the digest of what chooses the workloads; empty for workspaces.
	Selection string
}

// ScopeWorkloads is the scope of workloads whose rollouts are followed.
const ScopeWorkloads = "workloads"

// Observed is the fact that an object is as the delivery says.
func (r Reporter) Observed(d Delivery) (Fact, error) {
	meta := objectMeta(r.ClusterUID, d)
	var kind string
	var build func(events.ObjectMeta) any
	switch o := d.Object.(type) {
	case *appsv1.Deployment:
		kind, build = events.TypeObservedDeployment, func(m events.ObjectMeta) any { return observedDeployment(m, o) }
	case *corev1.Pod:
		kind, build = events.TypeObservedPod, func(m events.ObjectMeta) any { return observedPod(m, o) }
	case *kube.Workload:
		kind, build = events.TypeObservedWorkload, func(m events.ObjectMeta) any { return observedWorkload(m, d, o) }
	case *kube.Revision:
		kind, build = events.TypeObservedWorkloadRevision, func(m events.ObjectMeta) any { return observedRevision(m, o) }
	default: // the only kind that is read as metadata
		kind, build = events.TypeObservedReplicaSet, func(m events.ObjectMeta) any { return observedReplicaSet(m, o) }
	}
	return r.fact(d, kind, r.subject(d), string(d.Verb), meta, build)
}

// Rejected is the fact that an object cannot be told because its event is too large. It is a member of the same resync that the
// observation would have been of: the object is there.
func (r Reporter) Rejected(d Delivery, size, limit int) (Fact, error) {
	meta := objectMeta(r.ClusterUID, d)
	meta.Labels, meta.Annotations = nil, nil
	return r.fact(d, events.TypeObservedRejected, r.Cell.ObservedRejected(r.Agent), "rejected", meta, func(m events.ObjectMeta) any {
		return events.ObservedRejected{
			Object: m, Kind: string(d.Kind), Scope: events.Scope(r.Scope), Reason: events.RejectedReasonTooLarge, SizeBytes: size,
			Message: fmt.Sprintf("the %s %s/%s takes %d bytes as an event and at most %d are stored: shorten its annotations or the messages of its conditions",
				d.Kind, d.Namespace, d.Name, size, limit),
		}
	})
}

// subject is that of the Deployment or workload an object is or belongs to.
func (r Reporter) subject(d Delivery) string {
	switch o := d.Object.(type) {
	case *kube.Workload:
		return r.Cell.ObservedWorkload(r.Agent, string(o.Kind), d.Namespace, d.Name)
	case *kube.Revision:
		return r.Cell.ObservedWorkload(r.Agent, string(o.Owner.Kind), d.Namespace, o.Owner.Name)
	}
	return r.Cell.Observed(r.Agent, string(kube.Deployment), d.Namespace, owningDeployment(d.Kind, d.Object))
}

// fact gives the event its id: what was seen of which object, and a digest of the content without how and when it came to be told. build is given the metadata
// without those, and then with them.
func (r Reporter) fact(d Delivery, kind, subject, verb string, meta events.ObjectMeta, build func(events.ObjectMeta) any) (Fact, error) {
	bare := meta
	bare.ObservedAt, bare.UpdateType, bare.ResyncID, bare.FirstSeen = time.Time{}, "", "", false
	content, err := json.Marshal(build(bare))
	if err != nil {
		return Fact{}, fmt.Errorf("observation of %s %s/%s: %w", d.Kind, d.Namespace, d.Name, err)
	}
	digest := sha256.Sum256(content)
	id := []string{r.ClusterUID, string(d.Kind), d.UID, verb, d.Version, hex.EncodeToString(digest[:digestBytes])}
	if d.ResyncID != "" {
		id = append(id, d.ResyncID)
	}
	return r.event(kind, subject, strings.Join([]string{string(d.Kind), d.Namespace, d.Name}, "/"), strings.Join(id, "/"), meta.ObservedAt, build(meta))
}

// Begun is the fact that a full resync begins.
func (r Reporter) Begun(resync Resync, at time.Time) (Fact, error) {
	versions := make([]events.ListVersion, 0, len(resync.Versions))
	for _, kind := range kube.Kinds() {
		if version, listed := resync.Versions[kind]; listed {
			versions = append(versions, events.ListVersion{Kind: string(kind), ResourceVersion: version})
		}
	}
	at = at.UTC().Truncate(time.Millisecond)
	return r.event(events.TypeObservedResyncBegun, r.Cell.ObservedResync(r.Agent), resync.ID, r.ClusterUID+"/resync/"+resync.ID+"/begun", at, events.ObservedResyncBegun{
		ResyncID: resync.ID, ClusterUID: r.ClusterUID, Cause: resync.Cause, Nonce: resync.Nonce,
		Scope: events.Scope(r.Scope), Selection: r.Selection, Count: resync.Count, ListVersions: versions, ObservedAt: at,
	})
}

// Ended is the fact that a full resync has been sent whole.
func (r Reporter) Ended(resync Resync, at time.Time) (Fact, error) {
	at = at.UTC().Truncate(time.Millisecond)
	return r.event(events.TypeObservedResyncEnded, r.Cell.ObservedResync(r.Agent), resync.ID, r.ClusterUID+"/resync/"+resync.ID+"/ended", at, events.ObservedResyncEnded{
		ResyncID: resync.ID, ClusterUID: r.ClusterUID, Scope: events.Scope(r.Scope), Count: resync.Count, ObservedAt: at,
	})
}

// Tick is the fact that it is this time.
func (r Reporter) Tick(at time.Time) (Fact, error) {
	at = at.UTC().Truncate(time.Millisecond)
	return r.event(events.TypeObservedTick, r.Cell.ObservedTick(r.Agent), "tick", fmt.Sprintf("%s/tick/%d", r.ClusterUID, at.UnixMilli()), at,
		events.ObservedTick{ClusterUID: r.ClusterUID, ObservedAt: at})
}

func (r Reporter) event(kind, subject, about, id string, at time.Time, data any) (Fact, error) {
	e, err := event.New(event.Attributes{
		Type: kind, Source: event.AgentSource(string(r.Cell), r.Agent, component), Subject: about, ID: id, Time: at,
	}, data)
	if err != nil {
		return Fact{}, err
	}
	return Fact{Subject: subject, Event: e}, nil
}
