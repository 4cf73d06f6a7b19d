package nats

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/domain"
	"lockstep.internal/services/state/postgres"
)

const (
	typeApplied     = events.TypeApplied
	typeApplyFailed = events.TypeApplyFailed
	typeTerminating = events.TypeTerminating

	watcherComponent    = "watcher"
	dispatcherComponent = "dispatcher"
)

// Longest texts that are kept, in bytes. Names are keys in the database, which bounds them.
const (
	maxToken   = 253
	maxMessage = 4096
)

// said is an event of an agent, and where it was said.
type said struct {
	event.Event

	agentID int64
	subject string
	// place is the tokens of the subject after the agent, joined by slashes.
	place string
}

// open reads an event of an agent: a CloudEvent whose source is the component of the agent that its subject names. Its data is not looked at.
func open(cell topology.Cell, subject, family, component string, header nats.Header, data []byte) (said, error) {
	parsed, err := topology.Parse(subject)
	if err != nil {
		return said{}, fmt.Errorf("subject: %w", err)
	}
	agentID, err := parsed.Agent()
	if err != nil {
		return said{}, fmt.Errorf("subject: %w", err)
	}
	if parsed.Cell != cell || parsed.Family != family {
		return said{}, fmt.Errorf("subject %s: is not of %s", subject, cell.All(family))
	}
	e, err := event.Decode(header, data)
	if err != nil {
		return said{}, fmt.Errorf("event: %w", err)
	}
	if want := event.AgentSource(string(cell), agentID, component); e.Source() != want {
		return said{}, fmt.Errorf("source %.200q: only %s writes on %s", e.Source(), want, subject)
	}
	if !strings.HasPrefix(e.Type(), event.TypePrefix+family+".") {
		return said{}, fmt.Errorf("type %.200q: does not belong on %s", e.Type(), subject)
	}
	return said{Event: e, agentID: agentID, subject: subject, place: strings.Join(parsed.Tokens[1:], "/")}, nil
}

// decodeApplied reads a message of the stream APPLIED.
func decodeApplied(cell topology.Cell, subject string, header nats.Header, data []byte) (Applied, error) {
	e, err := open(cell, subject, topology.FamilyApplied, dispatcherComponent, header, data)
	if err != nil {
		return Applied{}, err
	}
	a := Applied{AgentID: e.agentID, Type: e.Type()}
	switch e.Type() {
	case typeApplied:
		err = application(&a, e)
	default:
		err = failing(&a, e)
	}
	if err != nil {
		return Applied{}, err
	}
	if a.Label != e.place {
		return Applied{}, fmt.Errorf("workspace %.80q: is not that of subject %s", a.Label, subject)
	}
	if a.Revision > domain.MaxRevision || a.ClusterRevision > domain.MaxRevision {
		return Applied{}, fmt.Errorf("desired_revision %d or cluster_revision %d: is above %d", a.Revision, a.ClusterRevision, int64(domain.MaxRevision))
	}
	// In its one spelling only, as for observations.
	if id, err := uuid.Parse(a.Label); err == nil && id.String() == a.Label {
		a.WorkspaceID = id
	}
	return a, token("workspace_id", a.Label, 1)
}

// application reads that a revision was applied.
func application(a *Applied, e said) error {
	var d events.Applied
	if err := read(e, &d); err != nil {
		return err
	}
	a.Label, a.Revision, a.At = d.WorkspaceID, int64(d.DesiredRevision), d.ObservedAt.UTC()
	a.DeploymentUID, a.DeploymentGeneration = cut(d.DeploymentUID, maxToken), int64(d.DeploymentGeneration)
	for _, object := range d.Repaired {
		a.Repaired = append(a.Repaired, events.ObjectReference{
			ApiVersion: cut(object.ApiVersion, maxToken), Kind: cut(object.Kind, maxToken), Namespace: cut(object.Namespace, maxToken), Name: cut(object.Name, maxToken),
		})
	}
	return nil
}

// failing reads any other event of the family: every one has these fields, the schemas differ in what else they have.
func failing(a *Applied, e said) error {
	var d events.ApplyFailed
	if err := read(e, &d); err != nil {
		return err
	}
	a.Label, a.Revision, a.At = d.WorkspaceID, int64(d.DesiredRevision), d.ObservedAt.UTC()
	a.Reason, a.Message, a.ClusterRevision = cut(d.Reason, maxToken), cut(d.Message, maxMessage), int64(d.ClusterRevision)
	return nil
}

// workloads is the scope of what is observed of workloads whose rollouts are followed.
const workloads = string(events.ScopeWorkloads)

// ofWorkload tells by its subject alone whether a message of the stream OBSERVED is for those who follow rollouts: about a workload whose rollouts are followed,
// or, below no agent, about whose a cluster is.
func ofWorkload(subject string) bool {
	const position = 3 // lockstep.<cell>.observed.<agent>.workload.…
	for range position {
		_, rest, found := strings.Cut(subject, ".")
		if !found {
			return false
		}
		subject = rest
	}
	agent, rest, _ := strings.Cut(subject, ".")
	return agent == topology.TokenCluster || strings.HasPrefix(rest, topology.TokenWorkload+".")
}

// decodeObserved reads a message of the stream OBSERVED. Who reads of workloads judges whether what is said of them is well said.
func decodeObserved(cell topology.Cell, subject string, header nats.Header, data []byte) (Observed, error) {
	if ofWorkload(subject) {
		return Observed{Ignored: true}, nil
	}
	e, err := open(cell, subject, topology.FamilyObserved, watcherComponent, header, data)
	if err != nil {
		return Observed{}, err
	}
	o := Observed{AgentID: e.agentID}
	kinds, err := observables()
	if err != nil {
		return Observed{}, err
	}
	switch kind, isObject := kinds[e.Type()]; {
	case isObject:
		err = kind.object(&o, e)
	case e.Type() == events.TypeObservedRejected:
		err = rejected(&o, e)
	case e.Type() == events.TypeObservedTick:
		err = tick(&o, e)
	case e.Type() == events.TypeObservedResyncBegun:
		err = begun(&o, e)
	case e.Type() == events.TypeObservedResyncEnded:
		err = ended(&o, e)
	default:
		err = fmt.Errorf("type %s: is not known to this version of the service", e.Type())
	}
	if err != nil || o.Ignored {
		return Observed{Ignored: o.Ignored}, err
	}
	return o, token("cluster_uid", o.ClusterUID, 1)
}

// read checks the data of an event against its schema and reads it.
func read(e said, into any) error {
	if err := events.Validate(e.Type(), e.Data()); err != nil {
		return fmt.Errorf("data: %w", err)
	}
	if err := json.Unmarshal(e.Data(), into); err != nil {
		return fmt.Errorf("data: %w", err)
	}
	return nil
}

// rejected reads that an object could not be observed: it is there, and that is all.
func rejected(o *Observed, e said) error {
	var d events.ObservedRejected
	if err := read(e, &d); err != nil {
		return err
	}
	if e.place != "rejected" {
		return fmt.Errorf("a rejected object does not belong on subject %s", e.subject)
	}
	if string(d.Scope) == workloads {
		o.Ignored = true
		return nil
	}
	clean, err := json.Marshal(struct {
		Object events.ObjectMeta `json:"object"`
	}{d.Object})
	if err != nil {
		return fmt.Errorf("data: %w", err)
	}
	return errors.Join(token("kind", d.Kind, 1), observe(o, &d.Object, d.Kind, string(withoutZeroBytes(clean))))
}

func observe(o *Observed, meta *events.ObjectMeta, kind, data string) error {
	if !domain.ValidVersion(meta.ResourceVersion) {
		return fmt.Errorf("resource_version %.80q: is no version", meta.ResourceVersion)
	}
	o.ClusterUID, o.At, o.Label = meta.ClusterUID, meta.ObservedAt.UTC(), meta.WorkspaceID
	o.Object = &postgres.Object{
		AgentID: o.AgentID, Kind: kind, Namespace: meta.Namespace, Name: meta.Name, UID: meta.UID, ClusterUID: meta.ClusterUID,
		Version: meta.ResourceVersion, Deleted: meta.Verb == events.VerbDeleted, ResyncID: meta.ResyncID, Data: data,
	}
	// In its one spelling only: what reads the same but is spelled otherwise is not what was given out.
	if id, err := uuid.Parse(meta.WorkspaceID); err == nil && id.String() == meta.WorkspaceID {
		o.Object.WorkspaceID = id
	}
	return errors.Join(token("namespace", meta.Namespace, 0), token("name", meta.Name, 1), token("uid", meta.UID, 1),
		token("resync_id", meta.ResyncID, 0), token("workspace_id", meta.WorkspaceID, 0))
}

func tick(o *Observed, e said) error {
	var d events.ObservedTick
	if err := read(e, &d); err != nil {
		return err
	}
	o.ClusterUID, o.At, o.Tick = d.ClusterUID, d.ObservedAt.UTC(), true
	if e.place != "tick" {
		return fmt.Errorf("a tick does not belong on subject %s", e.subject)
	}
	return nil
}

func begun(o *Observed, e said) error {
	o.Begun = &events.ObservedResyncBegun{}
	if err := read(e, o.Begun); err != nil {
		return err
	}
	o.ClusterUID, o.At = o.Begun.ClusterUID, o.Begun.ObservedAt.UTC()
	if e.place != "resync" {
		return fmt.Errorf("the begin of a resync does not belong on subject %s", e.subject)
	}
	if string(o.Begun.Scope) == workloads {
		o.Ignored = true
		return nil
	}
	errs := []error{token("resync_id", o.Begun.ResyncID, 1), token("nonce", o.Begun.Nonce, 0)}
	for _, v := range o.Begun.ListVersions {
		errs = append(errs, token("list_versions", v.Kind, 1))
		if !domain.ValidVersion(v.ResourceVersion) {
			errs = append(errs, fmt.Errorf("list_versions of %.80s: %.80q is no version", v.Kind, v.ResourceVersion))
		}
	}
	return errors.Join(errs...)
}

func ended(o *Observed, e said) error {
	o.Ended = &events.ObservedResyncEnded{}
	if err := read(e, o.Ended); err != nil {
		return err
	}
	o.ClusterUID, o.At = o.Ended.ClusterUID, o.Ended.ObservedAt.UTC()
	if e.place != "resync" {
		return fmt.Errorf("the end of a resync does not belong on subject %s", e.subject)
	}
	if string(o.Ended.Scope) == workloads {
		o.Ignored = true
		return nil
	}
	return token("resync_id", o.Ended.ResyncID, 1)
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

// cut bounds a text, and takes the zero bytes out of it, which PostgreSQL does not take.
func cut(text string, most int) string {
	text = strings.ReplaceAll(text, "\x00", "")
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// withoutZeroBytes drops the escapes \u0000 from marshalled JSON: PostgreSQL takes no zero bytes in texts, and a container's last words may
// hold some.
func withoutZeroBytes(data []byte) []byte {
	const escape = `\u0000`
	if !strings.Contains(string(data), escape) {
		return data
	}
	out := make([]byte, 0, len(data))
	for i := 0; i < len(data); i++ {
		if data[i] != '\\' {
			out = append(out, data[i])
			continue
		}
		if strings.HasPrefix(string(data[i:min(len(data), i+len(escape))]), escape) {
			i += len(escape) - 1
			continue
		}
		// An escaped backslash is taken whole: what follows is no escape.
		out = append(out, data[i], data[i+1])
		i++
	}
	return out
}
