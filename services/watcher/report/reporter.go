package report

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/delivery"
	"lockstep.internal/services/watcher/object"
	"lockstep.internal/services/watcher/resync"
)

const (
	component = "watcher"
	// digestBytes is the length of the digest in an event's id: the beginning of its SHA-256.
	digestBytes = 8
)

// ScopeWorkloads is the scope of tracked workloads in events.
const ScopeWorkloads = "workloads"

// Message is an event and the subject to publish it on.
type Message struct {
	Subject string
	Event   event.Event
}

// Reporter makes the events of one scope. The zero value is not useful.
type Reporter struct {
	Cell       topology.Cell
	Agent      int64
	ClusterUID string
	// Scope is empty for workspaces, [ScopeWorkloads] for tracked workloads.
	Scope string
	// Selection is the digest of the selection of tracked workloads; empty for workspaces.
	Selection string
}

// Observed makes the event of a delivery.
func (r Reporter) Observed(d delivery.Delivery) (Message, error) {
	o, err := object.Decode(d.Object)
	if err != nil {
		return Message{}, fmt.Errorf("make an event: %w", err)
	}
	eventType, build, err := data(d, o)
	if err != nil {
		return Message{}, err
	}
	// subject takes o: the Deployment of a workspace is not a tracked workload.
	return r.observation(d, eventType, r.subject(d, o), string(d.Verb), objectMeta(r.ClusterUID, d, o), build)
}

// data returns the type of the event of an object, and what makes its data.
func data(d delivery.Delivery, o metav1.Object) (eventType string, build func(events.ObjectMeta) any, err error) {
	switch c := compact(o).(type) {
	case *object.Workload:
		return events.TypeObservedWorkload, func(m events.ObjectMeta) any { return observedWorkload(m, d, c) }, nil
	case *object.Revision:
		return events.TypeObservedWorkloadRevision, func(m events.ObjectMeta) any { return observedRevision(m, c) }, nil
	case *corev1.Pod:
		return events.TypeObservedPod, func(m events.ObjectMeta) any { return observedPod(m, c) }, nil
	default:
		return "", nil, fmt.Errorf("make an event: no event reports a %T", c)
	}
}

// member is an [events.ResyncMember] whose data is not encoded yet, so that it is encoded once.
type member struct {
	Type string `json:"type"`
	Data any    `json:"data"`
}

// Members makes the event of several members of one full resync. The number is unique within the resync.
func (r Reporter) Members(deliveries []delivery.Delivery, number int, at time.Time) (Message, error) {
	members := make([]member, len(deliveries))
	for i, d := range deliveries {
		o, err := object.Decode(d.Object)
		if err != nil {
			return Message{}, fmt.Errorf("make a member: %w", err)
		}
		eventType, build, err := data(d, o)
		if err != nil {
			return Message{}, err
		}
		members[i] = member{Type: eventType, Data: build(objectMeta(r.ClusterUID, d, o))}
	}
	resyncID := deliveries[0].ResyncID
	at = at.UTC().Truncate(time.Millisecond)
	id := fmt.Sprintf("%s/resync/%s/members/%d", r.ClusterUID, resyncID, number)
	return r.message(events.TypeObservedMembers, r.Cell.ObservedMembers(r.Agent), resyncID, id, at, struct {
		events.ObservedMembers

		Members []member `json:"members"` // hides the embedded field
	}{events.ObservedMembers{ResyncID: resyncID, ClusterUID: r.ClusterUID, ObservedAt: at}, members})
}

// compact returns the Deployment or ReplicaSet of a workspace as a workload or a revision.
func compact(o metav1.Object) metav1.Object {
	switch o := o.(type) {
	case *appsv1.Deployment:
		return object.WorkloadOf(o)
	case *metav1.PartialObjectMetadata:
		return object.RevisionOf(o)
	default:
		return o
	}
}

// Rejected makes the event of a version that is too large to publish. It counts as a member of the resync that the
// version is a member of.
func (r Reporter) Rejected(d delivery.Delivery, size, limit int) (Message, error) {
	o, err := object.Decode(d.Object)
	if err != nil {
		return Message{}, fmt.Errorf("make an event: %w", err)
	}
	meta := objectMeta(r.ClusterUID, d, o)
	meta.Labels, meta.Annotations = nil, nil
	key := d.Key()
	message := fmt.Sprintf("the event of %s %s/%s has %d bytes, the limit is %d: "+
		"shorten its annotations or the messages of its conditions", d.Kind, key.Namespace, key.Name, size, limit)
	build := func(m events.ObjectMeta) any {
		return events.ObservedRejected{
			Object: m, Kind: string(d.Kind), Scope: events.Scope(r.Scope), Reason: events.RejectedReasonTooLarge,
			SizeBytes: size, Message: message,
		}
	}
	return r.observation(d, events.TypeObservedRejected, r.Cell.ObservedRejected(r.Agent), "rejected", meta, build)
}

// subject returns the subject of the Deployment or workload that an object is or belongs to.
func (r Reporter) subject(d delivery.Delivery, o metav1.Object) string {
	key := d.Key()
	switch o := o.(type) {
	case *object.Workload:
		return r.Cell.ObservedWorkload(r.Agent, string(o.Kind), key.Namespace, key.Name)
	case *object.Revision:
		return r.Cell.ObservedWorkload(r.Agent, string(o.Owner.Kind), key.Namespace, o.Owner.Name)
	}
	return r.Cell.Observed(r.Agent, string(object.Deployment), key.Namespace, object.DeploymentOf(d.Kind, o))
}

// observation gives the event its id. The digest is of the content without the fields that depend
// on when and why it is published.
func (r Reporter) observation(
	d delivery.Delivery, eventType, subject, verb string, meta events.ObjectMeta, build func(events.ObjectMeta) any,
) (Message, error) {
	key := d.Key()
	bare := meta
	bare.ObservedAt, bare.UpdateType, bare.ResyncID, bare.FirstSeen = time.Time{}, "", "", false
	content, err := json.Marshal(build(bare))
	if err != nil {
		return Message{}, fmt.Errorf("encode %s %s/%s: %w", d.Kind, key.Namespace, key.Name, err)
	}
	digest := sha256.Sum256(content)
	shortened := hex.EncodeToString(digest[:digestBytes])
	id := []string{r.ClusterUID, string(d.Kind), key.UID, verb, d.ResourceVersion, shortened}
	if d.ResyncID != "" {
		id = append(id, d.ResyncID)
	}
	about := strings.Join([]string{string(d.Kind), key.Namespace, key.Name}, "/")
	return r.message(eventType, subject, about, strings.Join(id, "/"), meta.ObservedAt, build(meta))
}

// ResyncBegun makes the event that starts a full resync.
func (r Reporter) ResyncBegun(resync resync.Resync, at time.Time) (Message, error) {
	at = at.UTC().Truncate(time.Millisecond)
	id := r.ClusterUID + "/resync/" + resync.ID + "/begun"
	return r.message(events.TypeObservedResyncBegun, r.Cell.ObservedResync(r.Agent), resync.ID, id, at,
		events.ObservedResyncBegun{
			ResyncID: resync.ID, ClusterUID: r.ClusterUID, Cause: resync.Cause, Nonce: resync.Nonce,
			Scope: events.Scope(r.Scope), Selection: r.Selection, Count: resync.Count,
			ListVersions: versionsByKind(resync.Versions), KnownVersions: versionsByKind(resync.Known), ObservedAt: at,
		})
}

func versionsByKind(of map[object.Kind]string) []events.ListVersion {
	versions := make([]events.ListVersion, 0, len(of))
	for _, kind := range object.Kinds() {
		if version, known := of[kind]; known {
			versions = append(versions, events.ListVersion{Kind: string(kind), ResourceVersion: version})
		}
	}
	return versions
}

// ResyncEnded makes the event that ends a full resync.
func (r Reporter) ResyncEnded(resync resync.Resync, at time.Time) (Message, error) {
	at = at.UTC().Truncate(time.Millisecond)
	id := r.ClusterUID + "/resync/" + resync.ID + "/ended"
	return r.message(events.TypeObservedResyncEnded, r.Cell.ObservedResync(r.Agent), resync.ID, id, at,
		events.ObservedResyncEnded{
			ResyncID: resync.ID, ClusterUID: r.ClusterUID, Scope: events.Scope(r.Scope), Count: resync.Count,
			ObservedAt: at,
		})
}

// Tick makes the event of the current time.
func (r Reporter) Tick(at time.Time) (Message, error) {
	at = at.UTC().Truncate(time.Millisecond)
	id := fmt.Sprintf("%s/tick/%d", r.ClusterUID, at.UnixMilli())
	return r.message(events.TypeObservedTick, r.Cell.ObservedTick(r.Agent), "tick", id, at,
		events.ObservedTick{ClusterUID: r.ClusterUID, ObservedAt: at})
}

func (r Reporter) message(eventType, subject, about, id string, at time.Time, data any) (Message, error) {
	e, err := event.New(event.Attributes{
		Type: eventType, Source: event.AgentSource(string(r.Cell), r.Agent, component), Subject: about, ID: id, Time: at,
	}, data)
	if err != nil {
		return Message{}, err
	}
	return Message{Subject: subject, Event: e}, nil
}
