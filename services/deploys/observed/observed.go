package observed

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/rollout"
)

const (
	watcherComponent = "watcher"
	// scopeWorkloads is the scope of full resyncs that this service is concerned with.
	scopeWorkloads = string(events.ScopeWorkloads)
	// maxToken bounds what becomes a key, in bytes.
	maxToken = 253
)

// Observed is what a watcher says: a workload, what keeps a revision of one, a tick, the begin or the end of a full resync, an object that it could not tell; or nothing
// of this service's concern. Exactly one of the pointers is set, or Tick.
type Observed struct {
	AgentID    int64
	ClusterUID string
	At         time.Time
	// Trace is the traceparent of the message.
	Trace string

	Workload *events.ObservedWorkload
	Revision *events.ObservedWorkloadRevision
	Rejected *events.ObservedRejected
	Begun    *events.ObservedResyncBegun
	Ended    *events.ObservedResyncEnded
	// Released is what no watcher says, but the service itself. There is no agent then.
	Released *events.ObservedClusterReleased
	Tick     bool

	// Key and ID are of the workload that a workload, a revision or a rejected workload is about.
	Key rollout.Key
	ID  uuid.UUID
}

// Object is what is told of an object; nil for the others.
func (o *Observed) Object() *events.ObjectMeta {
	switch {
	case o.Workload != nil:
		return &o.Workload.Object
	case o.Revision != nil:
		return &o.Revision.Object
	case o.Rejected != nil:
		return &o.Rejected.Object
	default:
		return nil
	}
}

// Member is the name of an object among the members of a full resync; empty for what is told of no object.
func (o *Observed) Member() string {
	switch {
	case o.Workload != nil:
		return string(o.Workload.Kind) + "/" + o.Workload.Object.UID
	case o.Revision != nil:
		return string(o.Revision.Kind) + "/" + o.Revision.Object.UID
	case o.Rejected != nil:
		return o.Rejected.Kind + "/" + o.Rejected.Object.UID
	default:
		return ""
	}
}

// Identify gives the id by which a workload, or an environment, is stored.
func Identify(cluster, namespace, kind, name string) uuid.UUID {
	var text [256]byte
	parts := text[:0]
	for _, part := range [...]string{cluster, namespace, kind, name} {
		parts = append(strconv.AppendInt(parts, int64(len(part)), 10), ':')
		parts = append(append(parts, part...), '/')
	}
	digest := sha256.Sum256(parts)
	return uuid.UUID(digest[:16])
}

// The data of workloads, their revisions and ticks is not checked against its schema, which takes longer than everything else that is done with it: what the
// pure core needs is looked at here, and what it cannot make sense of it leaves alone.

func (o *Observed) workload(r *reader, place []string, data []byte) error {
	o.Workload = &events.ObservedWorkload{}
	if err := unmarshal(data, o.Workload, r.workload); err != nil {
		return err
	}
	w := o.Workload
	if w.Template != nil && !plausible(w.Template.ChangedAt) {
		return errors.New("template.changed_at: is no time of these days")
	}
	for i := range w.Conditions {
		if c := &w.Conditions[i]; !plausible(c.LastUpdateTime) || !plausible(c.LastTransitionTime) {
			return fmt.Errorf("condition %.80s: its times are not of these days", c.Type)
		}
	}
	if !slices.Contains([]events.WorkloadKind{events.WorkloadKindDeployment, events.WorkloadKindStatefulset, events.WorkloadKindDaemonset}, w.Kind) {
		return fmt.Errorf("kind %.80q: is no kind of workload", w.Kind)
	}
	bound(w)
	return errors.Join(
		token("current_revision", w.CurrentRevision, 0), token("update_revision", w.UpdateRevision, 0), o.of(&w.Object, place, string(w.Kind), w.Object.Name))
}

func (o *Observed) revision(quick *reader, place []string, data []byte) error {
	o.Revision = &events.ObservedWorkloadRevision{}
	if err := unmarshal(data, o.Revision, quick.revision); err != nil {
		return err
	}
	r := o.Revision
	owner := ""
	if len(place) > 1 {
		owner = place[1]
	}
	deployments := owner == rollout.Deployment && r.Kind == events.WorkloadRevisionKindReplicaset
	others := (owner == rollout.StatefulSet || owner == rollout.DaemonSet) && r.Kind == events.WorkloadRevisionKindControllerrevision
	if !deployments && !others {
		return fmt.Errorf("a %.80s keeps no revisions of a %.80s", r.Kind, owner)
	}
	if r.Revision < 0 {
		return fmt.Errorf("revision %d: is negative", r.Revision)
	}
	return errors.Join(token("workload_uid", r.WorkloadUID, 1), token("template_hash", r.TemplateHash, 0), o.of(&r.Object, place, owner, r.Workload))
}

// of notes which workload it is about, and checks that it is told where that is told of.
func (o *Observed) of(meta *events.ObjectMeta, place []string, kind, name string) error {
	o.ClusterUID, o.At = meta.ClusterUID, meta.ObservedAt.UTC()
	o.Key = rollout.Key{ClusterUID: meta.ClusterUID, Namespace: meta.Namespace, Kind: kind, Name: name}
	if !slices.Equal(place, []string{topology.TokenWorkload, kind, meta.Namespace, name}) {
		return fmt.Errorf("%.80s %.80q in namespace %.80q: does not belong on subject …%.300s", kind, name, meta.Namespace, strings.Join(place, "."))
	}
	if meta.Verb != events.VerbUpserted && meta.Verb != events.VerbDeleted {
		return fmt.Errorf("verb %.80q: is none", meta.Verb)
	}
	if !version(meta.ResourceVersion) {
		return fmt.Errorf("resource_version %.80q: is no version", meta.ResourceVersion)
	}
	if !plausible(&o.At) || !plausible(meta.CreatedAt) || !plausible(meta.DeletedAt) {
		return errors.New("observed_at, created_at or deleted_at: is missing, or no time of these days")
	}
	return errors.Join(token("cluster_uid", o.ClusterUID, 1), named("namespace", meta.Namespace), named("name", meta.Name), named("workload", name), token("uid", meta.UID, 1), token("resync_id", meta.ResyncID, 0))
}

func (o *Observed) tick(place []string, data []byte) error {
	var d events.ObservedTick
	if err := unmarshal(data, &d, nil); err != nil {
		return err
	}
	o.ClusterUID, o.At, o.Tick = d.ClusterUID, d.ObservedAt.UTC(), true
	if !slices.Equal(place, []string{"tick"}) {
		return fmt.Errorf("a tick does not belong on subject …%.300s", strings.Join(place, "."))
	}
	if !plausible(&o.At) {
		return errors.New("observed_at: is missing, or no time of these days")
	}
	return token("cluster_uid", o.ClusterUID, 1)
}

// read checks the data of an event against its schema and reads it.
func read[T any](e event.Event, into *T) error {
	if err := events.Validate(e.Type(), e.Data()); err != nil {
		return fmt.Errorf("data: %w", err)
	}
	return unmarshal(e.Data(), into, nil)
}

// unmarshal reads data that the database can keep: PostgreSQL takes no zero bytes in texts. quick, if there is one, is tried first.
func unmarshal[T any](data []byte, into *T, quick func([]byte, *T) bool) error {
	if quick != nil && quick(data, into) {
		return nil
	}
	for rest := data; ; {
		_, after, found := bytes.Cut(rest, []byte(`\u0000`))
		if !found {
			break
		}
		before := data[:len(data)-len(after)-len(`\u0000`)]
		if (len(before)-len(bytes.TrimRight(before, `\`)))%2 == 0 {
			return errors.New("data: has a zero byte")
		}
		rest = after
	}
	var read T
	if err := json.Unmarshal(data, &read); err != nil {
		return fmt.Errorf("data: %w", err)
	}
	*into = read
	return nil
}

// plausible says whether a time, if there is one, is one that clusters tell and the database can keep.
func plausible(t *time.Time) bool {
	return t == nil || t.Year() >= 1970 && t.Year() < 9999
}

func (o *Observed) begun(place []string, e event.Event) error {
	var d events.ObservedResyncBegun
	if err := read(e, &d); err != nil {
		return err
	}
	if !slices.Equal(place, []string{"resync"}) {
		return fmt.Errorf("the begin of a resync does not belong on subject …%.300s", strings.Join(place, "."))
	}
	if string(d.Scope) != scopeWorkloads {
		return nil
	}
	o.Begun, o.ClusterUID, o.At = &d, d.ClusterUID, d.ObservedAt.UTC()
	for _, v := range d.ListVersions {
		if !version(v.ResourceVersion) {
			return fmt.Errorf("list_versions of %.80s: %.80q is no version", v.Kind, v.ResourceVersion)
		}
	}
	return errors.Join(token("cluster_uid", d.ClusterUID, 1), token("resync_id", d.ResyncID, 1), token("selection", d.Selection, 0))
}

func (o *Observed) ended(place []string, e event.Event) error {
	var d events.ObservedResyncEnded
	if err := read(e, &d); err != nil {
		return err
	}
	if !slices.Equal(place, []string{"resync"}) {
		return fmt.Errorf("the end of a resync does not belong on subject …%.300s", strings.Join(place, "."))
	}
	if string(d.Scope) != scopeWorkloads {
		return nil
	}
	o.Ended, o.ClusterUID, o.At = &d, d.ClusterUID, d.ObservedAt.UTC()
	return errors.Join(token("cluster_uid", d.ClusterUID, 1), token("resync_id", d.ResyncID, 1))
}

// maxReason bounds the reason of a release, in bytes.
const maxReason = 500

func (o *Observed) released(cluster string, e event.Event) error {
	var d events.ObservedClusterReleased
	if err := read(e, &d); err != nil {
		return err
	}
	o.Released, o.ClusterUID, o.At = &d, d.ClusterUID, d.ReleasedAt.UTC()
	switch {
	case d.ClusterUID != cluster:
		return fmt.Errorf("the release of cluster %.80q: does not belong on the subject of %.80q", d.ClusterUID, cluster)
	case !plausible(&o.At):
		return errors.New("released_at: is no time of these days")
	case len(d.Reason) > maxReason:
		return fmt.Errorf("reason: has %d bytes, at most %d may be", len(d.Reason), maxReason)
	}
	return token("cluster_uid", d.ClusterUID, 1)
}

func (o *Observed) rejected(place []string, e event.Event) error {
	var d events.ObservedRejected
	if err := read(e, &d); err != nil {
		return err
	}
	if !slices.Equal(place, []string{"rejected"}) {
		return fmt.Errorf("a rejected object does not belong on subject …%.300s", strings.Join(place, "."))
	}
	if string(d.Scope) != scopeWorkloads {
		return nil
	}
	o.Rejected, o.ClusterUID, o.At = &d, d.Object.ClusterUID, d.Object.ObservedAt.UTC()
	switch d.Kind {
	case rollout.Deployment, rollout.StatefulSet, rollout.DaemonSet:
		o.Key = rollout.Key{ClusterUID: o.ClusterUID, Namespace: d.Object.Namespace, Kind: d.Kind, Name: d.Object.Name}
		if err := errors.Join(named("namespace", d.Object.Namespace), named("name", d.Object.Name)); err != nil {
			return err
		}
	default:
	}
	return errors.Join(token("cluster_uid", o.ClusterUID, 1), token("kind", d.Kind, 1), token("uid", d.Object.UID, 1), token("resync_id", d.Object.ResyncID, 0))
}

// token checks a name that becomes a key.
func token(field, value string, least int) error {
	switch {
	case len(value) < least:
		return fmt.Errorf("%s: is empty", field)
	case len(value) > maxToken:
		return fmt.Errorf("%s: has %d bytes, at most %d may be", field, len(value), maxToken)
	case strings.ContainsRune(value, 0):
		return fmt.Errorf("%s: has a zero byte", field)
	default:
		return nil
	}
}

// maxVersionDigits is more than any cluster reaches.
const maxVersionDigits = 39

// version says whether a text is a resourceVersion that can be compared: decimal, without leading zeros.
func version(text string) bool {
	if text == "" || len(text) > maxVersionDigits || text[0] == '0' && len(text) > 1 {
		return false
	}
	return strings.Trim(text, "0123456789") == ""
}

// Below says whether one version is lower than another.
func Below(a, b string) bool {
	if len(a) != len(b) {
		return len(a) < len(b)
	}
	return a < b
}
