package observation

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/rollout"
)

const (
	watcherComponent = "watcher"
	serviceName      = "deploys"
	releasedSuffix   = ".released"
	// scopeWorkloads marks the full resyncs that this service reads.
	scopeWorkloads = string(events.ScopeWorkloads)
)

// Decoder decodes the messages of one cell. It is safe for concurrent use.
type Decoder struct {
	cell   topology.Cell
	prefix string
}

// NewDecoder returns a decoder for a cell.
func NewDecoder(cell topology.Cell) *Decoder {
	return &Decoder{cell: cell, prefix: cell.Prefix(topology.FamilyObserved) + "."}
}

// Relevant reports whether this service reads messages on the subject. Observations of workspaces are not relevant.
func (d *Decoder) Relevant(subject string) bool {
	rest, found := strings.CutPrefix(subject, d.prefix)
	if !found {
		return false
	}
	agent, rest, found := strings.Cut(rest, ".")
	if !found {
		return false
	}
	if agent == topology.TokenCluster {
		return strings.HasSuffix(rest, releasedSuffix)
	}
	token, _, more := strings.Cut(rest, ".")
	switch token {
	case topology.TokenWorkload:
		return more
	case "tick", "resync", "rejected":
		return true
	default:
		return false
	}
}

// Decode decodes a message. It returns the zero Observation for an irrelevant message. It returns an error for a
// malformed message; a retry has the same result.
func (d *Decoder) Decode(subject string, header nats.Header, data []byte) (Observation, error) {
	if !d.Relevant(subject) {
		return Observation{}, nil
	}
	parsed, err := topology.Parse(subject)
	if err != nil {
		return Observation{}, fmt.Errorf("subject: %w", err)
	}
	e, err := event.Decode(header, data)
	if err != nil {
		return Observation{}, fmt.Errorf("event: %w", err)
	}
	var o Observation
	if parsed.Tokens[0] == topology.TokenCluster {
		err = d.decodeRelease(&o, parsed.Tokens, e)
	} else {
		err = d.decodeReport(&o, parsed, e)
	}
	if err != nil {
		return Observation{}, err
	}
	if parent, isText := e.Extensions()[event.TraceParent].(string); isText && len(parent) <= maxKeyBytes {
		o.TraceParent = parent
	}
	if o.Key.Kind != "" {
		o.ID = NewID(o.Key.ClusterUID, o.Key.Namespace, o.Key.Kind, o.Key.Name)
	}
	return o, nil
}

// decodeReport decodes a message of a watcher.
func (d *Decoder) decodeReport(o *Observation, parsed topology.Subject, e event.Event) error {
	var err error
	if o.AgentID, err = parsed.Agent(); err != nil {
		return fmt.Errorf("subject: %w", err)
	}
	path := parsed.Tokens[1:] // after the agent
	if source := event.AgentSource(string(d.cell), o.AgentID, watcherComponent); e.Source() != source {
		return fmt.Errorf("source %.200q: only %s publishes on …%.300s", e.Source(), source, strings.Join(path, "."))
	}
	switch e.Type() {
	case events.TypeObservedWorkload:
		return o.decodeWorkload(path, e.Data())
	case events.TypeObservedWorkloadRevision:
		return o.decodeRevision(path, e.Data())
	case events.TypeObservedWorkloadPods:
		return o.decodePods(path, e.Data())
	case events.TypeObservedTick:
		return o.decodeTick(path, e.Data())
	case events.TypeObservedResyncBegun:
		return o.decodeResyncBegun(path, e)
	case events.TypeObservedResyncEnded:
		return o.decodeResyncEnded(path, e)
	case events.TypeObservedRejected:
		return o.decodeRejected(path, e)
	default:
		return fmt.Errorf("type %.200q: unknown to this version, or not allowed on subject …%.300s",
			e.Type(), strings.Join(path, "."))
	}
}

// decodeRelease decodes the release of a cluster, which only this service publishes.
func (d *Decoder) decodeRelease(o *Observation, tokens []string, e event.Event) error {
	source := event.ServiceSource(string(d.cell), serviceName)
	if e.Source() != source || e.Type() != events.TypeObservedClusterReleased || len(tokens) != 3 {
		return fmt.Errorf("type %.200q of source %.200q: only %s publishes on …%.300s, and only releases",
			e.Type(), e.Source(), source, strings.Join(tokens, "."))
	}
	data, err := decode[events.ObservedClusterReleased](e.Data())
	if err != nil {
		return err
	}
	o.ClusterReleased, o.ClusterUID, o.ObservedAt = data, data.ClusterUID, data.ReleasedAt.UTC()
	if data.ClusterUID != tokens[1] {
		return fmt.Errorf("release of cluster %.80q: not allowed on the subject of %.80q", data.ClusterUID, tokens[1])
	}
	if len(data.Reason) > maxReasonBytes {
		return fmt.Errorf("reason: has %d bytes, the limit is %d", len(data.Reason), maxReasonBytes)
	}
	return errors.Join(checkKey("cluster_uid", data.ClusterUID), checkTimes("released_at", &o.ObservedAt))
}

func (o *Observation) decodeWorkload(path []string, data []byte) error {
	w, err := decode[events.ObservedWorkload](data)
	if err != nil {
		return err
	}
	o.Workload = w
	if w.Template != nil {
		if err := checkTimes("template.changed_at", w.Template.ChangedAt); err != nil {
			return err
		}
	}
	for i := range w.Conditions {
		c := &w.Conditions[i]
		if err := checkTimes("condition "+c.Type, c.LastUpdateTime, c.LastTransitionTime); err != nil {
			return err
		}
	}
	limitWorkload(w)
	return errors.Join(
		checkOptionalKey("current_revision", w.CurrentRevision), checkOptionalKey("update_revision", w.UpdateRevision),
		o.setKey(&w.Object, path, string(w.Kind), w.Object.Name),
	)
}

func (o *Observation) decodeRevision(path []string, data []byte) error {
	r, err := decode[events.ObservedWorkloadRevision](data)
	if err != nil {
		return err
	}
	o.Revision = r
	owner := ""
	if len(path) > 1 {
		owner = path[1]
	}
	replicaSet := owner == rollout.Deployment && r.Kind == events.WorkloadRevisionKindReplicaset
	controllerRevision := (owner == rollout.StatefulSet || owner == rollout.DaemonSet) &&
		r.Kind == events.WorkloadRevisionKindControllerrevision
	if !replicaSet && !controllerRevision {
		return fmt.Errorf("kind %.80q: is not a revision object of a %.80s", r.Kind, owner)
	}
	return errors.Join(
		checkKey("workload_uid", r.WorkloadUID), checkOptionalKey("template_hash", r.TemplateHash),
		o.setKey(&r.Object, path, owner, r.Workload),
	)
}

func (o *Observation) decodePods(path []string, data []byte) error {
	w, err := decode[events.ObservedWorkloadPods](data)
	if err != nil {
		return err
	}
	o.Pods = w
	w.Object.ResyncID = "" // it is no member of a full resync
	for i := range w.Pods {
		pod := &w.Pods[i]
		if err := checkTimes("created_at of a pod", pod.CreatedAt); err != nil {
			return err
		}
		for j := range pod.Conditions {
			c := &pod.Conditions[j]
			if err := checkTimes("condition "+c.Type, c.LastUpdateTime, c.LastTransitionTime); err != nil {
				return err
			}
		}
	}
	return errors.Join(
		checkKey("revision_name", w.RevisionName), checkVersion("list_version", w.ListVersion),
		o.setKey(&w.Object, path, string(w.Kind), w.Object.Name),
	)
}

// setKey sets the workload that the object belongs to, and checks that the subject names the same one.
func (o *Observation) setKey(meta *events.ObjectMeta, path []string, kind, name string) error {
	o.ClusterUID, o.ObservedAt = meta.ClusterUID, meta.ObservedAt.UTC()
	o.Key = rollout.Key{ClusterUID: meta.ClusterUID, Namespace: meta.Namespace, Kind: kind, Name: name}
	if !slices.Equal(path, []string{topology.TokenWorkload, kind, meta.Namespace, name}) {
		return fmt.Errorf("%.80s %.80q in namespace %.80q: not allowed on subject …%.300s",
			kind, name, meta.Namespace, strings.Join(path, "."))
	}
	return errors.Join(
		checkVersion("resource_version", meta.ResourceVersion),
		checkTimes("observed_at, created_at or deleted_at", &o.ObservedAt, meta.CreatedAt, meta.DeletedAt),
		checkKey("cluster_uid", o.ClusterUID), checkName("namespace", meta.Namespace), checkName("name", meta.Name),
		checkName("workload", name), checkKey("uid", meta.UID), checkOptionalKey("resync_id", meta.ResyncID),
	)
}

func (o *Observation) decodeTick(path []string, data []byte) error {
	tick, err := decode[events.ObservedTick](data)
	if err != nil {
		return err
	}
	o.ClusterUID, o.ObservedAt, o.Tick = tick.ClusterUID, tick.ObservedAt.UTC(), true
	return errors.Join(
		checkPath("a tick", path, "tick"), checkTimes("observed_at", &o.ObservedAt), checkKey("cluster_uid", o.ClusterUID),
	)
}

func (o *Observation) decodeResyncBegun(path []string, e event.Event) error {
	data, err := decode[events.ObservedResyncBegun](e.Data())
	if err != nil {
		return err
	}
	if err := checkPath("the begin of a full resync", path, "resync"); err != nil || string(data.Scope) != scopeWorkloads {
		return err
	}
	o.ResyncBegun, o.ClusterUID, o.ObservedAt = data, data.ClusterUID, data.ObservedAt.UTC()
	for _, v := range data.ListVersions {
		if err := checkVersion(fmt.Sprintf("list_versions of %.80s", v.Kind), v.ResourceVersion); err != nil {
			return err
		}
	}
	return errors.Join(
		checkKey("cluster_uid", data.ClusterUID), checkKey("resync_id", data.ResyncID),
		checkOptionalKey("selection", data.Selection),
	)
}

func (o *Observation) decodeResyncEnded(path []string, e event.Event) error {
	data, err := decode[events.ObservedResyncEnded](e.Data())
	if err != nil {
		return err
	}
	if err := checkPath("the end of a full resync", path, "resync"); err != nil || string(data.Scope) != scopeWorkloads {
		return err
	}
	o.ResyncEnded, o.ClusterUID, o.ObservedAt = data, data.ClusterUID, data.ObservedAt.UTC()
	return errors.Join(checkKey("cluster_uid", data.ClusterUID), checkKey("resync_id", data.ResyncID))
}

func (o *Observation) decodeRejected(path []string, e event.Event) error {
	data, err := decode[events.ObservedRejected](e.Data())
	if err != nil {
		return err
	}
	if err := checkPath("a rejected object", path, "rejected"); err != nil || string(data.Scope) != scopeWorkloads {
		return err
	}
	o.Rejected, o.ClusterUID, o.ObservedAt = data, data.Object.ClusterUID, data.Object.ObservedAt.UTC()
	switch data.Kind {
	case rollout.Deployment, rollout.StatefulSet, rollout.DaemonSet:
		object := &data.Object
		o.Key = rollout.Key{ClusterUID: o.ClusterUID, Namespace: object.Namespace, Kind: data.Kind, Name: object.Name}
		if err := errors.Join(checkName("namespace", object.Namespace), checkName("name", object.Name)); err != nil {
			return err
		}
	default: // a ReplicaSet or ControllerRevision: only its membership in the resync counts
	}
	return errors.Join(
		checkKey("cluster_uid", o.ClusterUID), checkKey("kind", data.Kind), checkKey("uid", data.Object.UID),
		checkOptionalKey("resync_id", data.Object.ResyncID),
	)
}

func checkPath(what string, path []string, want string) error {
	if !slices.Equal(path, []string{want}) {
		return fmt.Errorf("%s: not allowed on subject …%.300s", what, strings.Join(path, "."))
	}
	return nil
}

// zeroByte matches the JSON escape of a zero byte, but not an escaped backslash followed by "u0000".
var zeroByte = regexp.MustCompile(`(?:^|[^\\])(?:\\\\)*\\u0000`)

// decode decodes and validates data. It rejects zero bytes, because PostgreSQL cannot store them in text.
func decode[T any, P events.Data[T]](data []byte) (*T, error) {
	if bytes.Contains(data, []byte(`\u0000`)) && zeroByte.Match(data) {
		return nil, errors.New("data: has a zero byte")
	}
	value, err := events.Decode[T, P](data)
	if err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	return value, nil
}
