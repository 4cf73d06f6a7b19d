package ingest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/workspace"
)

const (
	watcherComponent    = "watcher"
	dispatcherComponent = "dispatcher"

	// maxName and maxMessage bound stored texts, in bytes. Names are keys in the database.
	maxName    = 253
	maxMessage = 4096

	scopeWorkloads = string(events.ScopeWorkloads)

	// pathMembers is the end of the subject of [topology.Cell.ObservedMembers].
	pathMembers = "members"
)

// agentEvent is a decoded event together with the agent id of its subject.
type agentEvent struct {
	event.Event

	agentID int64
	subject string
	// path is the rest of the subject after the agent, joined by slashes.
	path string
}

// decodeEvent decodes a CloudEvent and checks its source against the subject. It does not decode the data.
func decodeEvent(
	cell topology.Cell, subject, family, component string, header nats.Header, data []byte,
) (agentEvent, error) {
	parsed, err := topology.Parse(subject)
	if err != nil {
		return agentEvent{}, fmt.Errorf("subject: %w", err)
	}
	agentID, err := parsed.Agent()
	if err != nil {
		return agentEvent{}, fmt.Errorf("subject: %w", err)
	}
	if parsed.Cell != cell || parsed.Family != family {
		return agentEvent{}, fmt.Errorf("subject %s: does not match %s", subject, cell.All(family))
	}
	e, err := event.Decode(header, data)
	if err != nil {
		return agentEvent{}, fmt.Errorf("event: %w", err)
	}
	if want := event.AgentSource(string(cell), agentID, component); e.Source() != want {
		return agentEvent{}, fmt.Errorf("source %.200q is not allowed on %s: expected %s", e.Source(), subject, want)
	}
	if !strings.HasPrefix(e.Type(), event.TypePrefix+family+".") {
		return agentEvent{}, fmt.Errorf("type %.200q: does not belong on %s", e.Type(), subject)
	}
	return agentEvent{Event: e, agentID: agentID, subject: subject, path: strings.Join(parsed.Tokens[1:], "/")}, nil
}

// requirePath returns an error if the subject does not end with path.
func (e agentEvent) requirePath(path string) error {
	if e.path != path {
		return fmt.Errorf("%.200q does not belong on subject %s", path, e.subject)
	}
	return nil
}

// DecodeApplied decodes a message of APPLIED.
func DecodeApplied(cell topology.Cell, subject string, header nats.Header, data []byte) (Applied, error) {
	e, err := decodeEvent(cell, subject, topology.FamilyApplied, dispatcherComponent, header, data)
	if err != nil {
		return Applied{}, err
	}
	a := Applied{AgentID: e.agentID, Type: e.Type()}
	if err := a.read(e); err != nil {
		return Applied{}, fmt.Errorf("data: %w", err)
	}
	if a.Label != e.path {
		return Applied{}, fmt.Errorf("workspace %.80q: does not belong on subject %s", a.Label, subject)
	}
	if a.Revision > workspace.MaxRevision || a.ClusterRevision > workspace.MaxRevision {
		return Applied{}, fmt.Errorf("desired_revision %d or cluster_revision %d: is above %d",
			a.Revision, a.ClusterRevision, int64(workspace.MaxRevision))
	}
	a.WorkspaceID = canonicalID(a.Label)
	return a, checkName("workspace_id", a.Label, 1)
}

func (a *Applied) read(e agentEvent) error {
	decoded, err := events.DecodeAny(e.Type(), e.Data())
	if err != nil {
		return err
	}
	switch d := decoded.(type) {
	case *events.Applied:
		a.Label, a.Revision, a.At = d.WorkspaceID, int64(d.DesiredRevision), d.ObservedAt.UTC()
		a.DeploymentUID, a.DeploymentGeneration = truncate(d.DeploymentUID, maxName), int64(d.DeploymentGeneration)
		for _, object := range d.Repaired {
			a.Repaired = append(a.Repaired, events.ObjectReference{
				ApiVersion: truncate(object.ApiVersion, maxName), Kind: truncate(object.Kind, maxName),
				Namespace: truncate(object.Namespace, maxName), Name: truncate(object.Name, maxName),
			})
		}
	case *events.ApplyFailed:
		a.Label, a.Revision, a.At = d.WorkspaceID, int64(d.DesiredRevision), d.ObservedAt.UTC()
		a.Reason, a.Message = truncate(d.Reason, maxName), truncate(d.Message, maxMessage)
		a.ClusterRevision = int64(d.ClusterRevision)
	case *events.Terminating:
		a.Label, a.Revision, a.At = d.WorkspaceID, int64(d.DesiredRevision), d.ObservedAt.UTC()
		a.Reason, a.Message = truncate(d.Reason, maxName), truncate(d.Message, maxMessage)
	case *events.Terminated:
		a.Label, a.Revision, a.At = d.WorkspaceID, int64(d.DesiredRevision), d.ObservedAt.UTC()
	default:
		return fmt.Errorf("type %s: unknown to this version of the service", e.Type())
	}
	return nil
}

// isForDeploys reports whether only the deploys service reads the message: its subject names a tracked workload or a
// whole cluster.
func isForDeploys(subject string) bool {
	const position = 3 // lockstep.<cell>.observed.<agent>.workload.…
	for range position {
		_, rest, found := strings.Cut(subject, ".")
		if !found {
			return false
		}
		subject = rest
	}
	agentToken, rest, _ := strings.Cut(subject, ".")
	return agentToken == topology.TokenCluster || strings.HasPrefix(rest, topology.TokenWorkload+".")
}

// DecodeObserved decodes a message of OBSERVED. A message with many members of a full resync has many reports: if some
// are malformed, it returns the others and an error. A message for the deploys service has none.
func DecodeObserved(cell topology.Cell, subject string, header nats.Header, data []byte) ([]Observed, error) {
	if isForDeploys(subject) {
		return nil, nil
	}
	e, err := decodeEvent(cell, subject, topology.FamilyObserved, watcherComponent, header, data)
	if err != nil {
		return nil, err
	}
	switch isPage := e.Type() == events.TypeObservedMembers; {
	case isPage != (e.path == pathMembers):
		return nil, fmt.Errorf("type %s: does not belong on subject %s", e.Type(), subject)
	case isPage:
		return readMembers(e)
	}
	o := Observed{AgentID: e.agentID}
	if err := o.read(e); err != nil || o.forDeploys {
		return nil, err
	}
	return []Observed{o}, nil
}

// readMembers decodes each member of a full resync alone.
func readMembers(e agentEvent) ([]Observed, error) {
	page, err := events.Decode[events.ObservedMembers](e.Data())
	if err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	members, malformed := make([]Observed, 0, len(page.Members)), make([]error, 0)
	for n, m := range page.Members {
		o := Observed{AgentID: e.agentID}
		err := o.readObject(e, m.Type, m.Data)
		if err == nil && (o.Object.ResyncID != page.ResyncID || o.ClusterUID != page.ClusterUID) {
			err = fmt.Errorf("resync_id %.80q of cluster_uid %.80q: differs from the message", o.Object.ResyncID, o.ClusterUID)
		}
		if err != nil {
			malformed = append(malformed, fmt.Errorf("member %d: %w", n, err))
			continue
		}
		members = append(members, o)
	}
	if len(malformed) == 0 {
		return members, nil
	}
	return members, fmt.Errorf("%d of %d members are malformed, the others are processed; first: %w",
		len(malformed), len(page.Members), malformed[0])
}

func (o *Observed) read(e agentEvent) error {
	var err error
	switch e.Type() {
	case events.TypeObservedRejected:
		err = o.readRejected(e)
	case events.TypeObservedTick:
		err = o.readTick(e)
	case events.TypeObservedResyncBegun:
		err = o.readResyncBegun(e)
	case events.TypeObservedResyncEnded:
		err = o.readResyncEnded(e)
	default:
		return o.readObject(e, e.Type(), e.Data())
	}
	if err != nil || o.forDeploys {
		return err
	}
	return checkName("cluster_uid", o.ClusterUID, 1)
}

// readObject decodes the data of an event about an object: of the event e, or of a member in it.
func (o *Observed) readObject(e agentEvent, eventType string, data []byte) error {
	var err error
	switch eventType {
	case events.TypeObservedWorkload:
		err = read(e, data, o.setWorkload)
	case events.TypeObservedDeployment:
		err = read(e, data, func(e agentEvent, d *events.ObservedDeployment) error {
			return o.setWorkload(e, new(fromDeployment(*d)))
		})
	case events.TypeObservedWorkloadRevision:
		err = read(e, data, o.setRevision)
	case events.TypeObservedReplicaSet:
		err = read(e, data, func(e agentEvent, r *events.ObservedReplicaSet) error {
			return o.setRevision(e, new(fromReplicaSet(*r)))
		})
	case events.TypeObservedPod:
		err = read(e, data, o.setPod)
	default:
		err = fmt.Errorf("type %.200s: unknown to this version of the service", eventType)
	}
	if err != nil {
		return err
	}
	return checkName("cluster_uid", o.ClusterUID, 1)
}

// read decodes and validates the data of an event.
func read[T any, P events.Data[T]](e agentEvent, encoded []byte, set func(agentEvent, *T) error) error {
	data, err := events.Decode[T, P](encoded)
	if err != nil {
		return fmt.Errorf("data: %w", err)
	}
	return set(e, data)
}

func (o *Observed) setWorkload(e agentEvent, w *events.ObservedWorkload) error {
	if w.Kind != events.WorkloadKindDeployment {
		return fmt.Errorf("kind %s: does not belong on subject %s", w.Kind, e.subject)
	}
	return o.setOwned(e, &w.Object, KindDeployment, w.Object.Name, storedWorkload(*w))
}

func (o *Observed) setRevision(e agentEvent, r *events.ObservedWorkloadRevision) error {
	if r.Kind != events.WorkloadRevisionKindReplicaset {
		return fmt.Errorf("kind %s: does not belong on subject %s", r.Kind, e.subject)
	}
	return o.setOwned(e, &r.Object, KindReplicaSet, r.Workload, storedRevision(*r))
}

func (o *Observed) setPod(e agentEvent, p *events.ObservedPod) error {
	return o.setOwned(e, &p.Object, KindPod, p.Deployment, p)
}

// setOwned sets an object on the subject of its Deployment, or a member. Encoding it again drops unknown fields.
func (o *Observed) setOwned(e agentEvent, meta *events.ObjectMeta, kind, deployment string, object any) error {
	if e.path != pathMembers {
		if err := e.requirePath(KindDeployment + "/" + meta.Namespace + "/" + deployment); err != nil {
			return err
		}
	}
	data, err := json.Marshal(object)
	if err != nil {
		return fmt.Errorf("data: %w", err)
	}
	return o.setObject(meta, kind, data)
}

// readRejected decodes ObservedRejected: the event of this version was too large.
func (o *Observed) readRejected(e agentEvent) error {
	d, err := events.Decode[events.ObservedRejected](e.Data())
	if err != nil {
		return fmt.Errorf("data: %w", err)
	}
	if err := e.requirePath("rejected"); err != nil {
		return err
	}
	if string(d.Scope) == scopeWorkloads {
		o.forDeploys = true
		return nil
	}
	data, err := json.Marshal(struct {
		Object events.ObjectMeta `json:"object"`
	}{d.Object})
	if err != nil {
		return fmt.Errorf("data: %w", err)
	}
	return errors.Join(checkName("kind", d.Kind, 1), o.setObject(&d.Object, d.Kind, data))
}

func (o *Observed) setObject(meta *events.ObjectMeta, kind string, data []byte) error {
	if !agent.ValidVersion(meta.ResourceVersion) {
		return fmt.Errorf("resource_version %.80q: is not a resource version", meta.ResourceVersion)
	}
	o.ClusterUID, o.At, o.Label = meta.ClusterUID, meta.ObservedAt.UTC(), meta.WorkspaceID
	o.Object = &Object{
		AgentID: o.AgentID, Kind: kind, Namespace: meta.Namespace, Name: meta.Name, UID: meta.UID,
		ClusterUID: meta.ClusterUID, ResourceVersion: meta.ResourceVersion, Deleted: meta.Verb == events.VerbDeleted,
		WorkspaceID: canonicalID(meta.WorkspaceID), ResyncID: meta.ResyncID, Data: string(withoutNUL(data)),
	}
	return errors.Join(
		checkName("namespace", meta.Namespace, 0),
		checkName("name", meta.Name, 1),
		checkName("uid", meta.UID, 1),
		checkName("resync_id", meta.ResyncID, 0),
		checkName("workspace_id", meta.WorkspaceID, 0),
	)
}

func (o *Observed) readTick(e agentEvent) error {
	d, err := events.Decode[events.ObservedTick](e.Data())
	if err != nil {
		return fmt.Errorf("data: %w", err)
	}
	o.ClusterUID, o.At, o.Tick = d.ClusterUID, d.ObservedAt.UTC(), true
	return e.requirePath("tick")
}

func (o *Observed) readResyncBegun(e agentEvent) error {
	begun, err := events.Decode[events.ObservedResyncBegun](e.Data())
	if err != nil {
		return fmt.Errorf("data: %w", err)
	}
	o.Begun = begun
	o.ClusterUID, o.At = o.Begun.ClusterUID, o.Begun.ObservedAt.UTC()
	if err := e.requirePath("resync"); err != nil {
		return err
	}
	if string(o.Begun.Scope) == scopeWorkloads {
		o.forDeploys = true
		return nil
	}
	errs := []error{checkName("resync_id", o.Begun.ResyncID, 1), checkName("nonce", o.Begun.Nonce, 0)}
	for _, v := range o.Begun.ListVersions {
		errs = append(errs, checkName("list_versions", v.Kind, 1))
		if !agent.ValidVersion(v.ResourceVersion) {
			errs = append(errs, fmt.Errorf("list_versions of %.80s: %.80q is not a resource version", v.Kind, v.ResourceVersion))
		}
	}
	return errors.Join(errs...)
}

func (o *Observed) readResyncEnded(e agentEvent) error {
	ended, err := events.Decode[events.ObservedResyncEnded](e.Data())
	if err != nil {
		return fmt.Errorf("data: %w", err)
	}
	o.Ended = ended
	o.ClusterUID, o.At = o.Ended.ClusterUID, o.Ended.ObservedAt.UTC()
	if err := e.requirePath("resync"); err != nil {
		return err
	}
	if string(o.Ended.Scope) == scopeWorkloads {
		o.forDeploys = true
		return nil
	}
	return checkName("resync_id", o.Ended.ResyncID, 1)
}

// canonicalID parses a UUID in canonical form. It returns uuid.Nil for other texts.
func canonicalID(label string) uuid.UUID {
	id, err := uuid.Parse(label)
	if err != nil || id.String() != label {
		return uuid.Nil
	}
	return id
}

// checkName checks the length and content of a text that is stored as a key.
func checkName(field, value string, minLength int) error {
	switch {
	case len(value) < minLength:
		return fmt.Errorf("%s: is empty", field)
	case len(value) > maxName:
		return fmt.Errorf("%s: has %d bytes, the limit is %d", field, len(value), maxName)
	case strings.ContainsRune(value, 0):
		return fmt.Errorf("%s: contains a NUL byte", field)
	default:
		return nil
	}
}

// truncate shortens a text to a number of bytes and drops NUL bytes, which PostgreSQL refuses.
func truncate(text string, maxBytes int) string {
	text = strings.ReplaceAll(text, "\x00", "")
	if len(text) <= maxBytes {
		return text
	}
	return strings.ToValidUTF8(text[:maxBytes], "") + "…"
}

// withoutNUL drops the escape \u0000 from encoded JSON: PostgreSQL refuses NUL bytes in texts.
func withoutNUL(data []byte) []byte {
	const escape = `\u0000`
	if !bytes.Contains(data, []byte(escape)) {
		return data
	}
	out := make([]byte, 0, len(data))
	for i := 0; i < len(data); i++ {
		if data[i] != '\\' {
			out = append(out, data[i])
			continue
		}
		if bytes.HasPrefix(data[i:], []byte(escape)) {
			i += len(escape) - 1
			continue
		}
		// Copy an escape as a whole: in \\u0000 the second backslash starts no escape.
		out = append(out, data[i], data[i+1])
		i++
	}
	return out
}
