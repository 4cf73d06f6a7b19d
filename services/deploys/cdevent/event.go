package cdevent

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"lockstep.internal/libs/event"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/rollout"
)

const (
	// specVersion of CDEvents.
	specVersion = "0.5.1"
	// Prefixes of standard and of custom types.
	standard = "dev.cdevents."
	custom   = "dev.cdeventsx.lockstep-rollout."
	// service that publishes the events.
	service = "deploys"
)

// cdEvent is the data of the CloudEvent without customData and customDataContentType.
type cdEvent struct {
	Context eventContext `json:"context"`
	Subject subject      `json:"subject"`
}

// with returns the complete data of the CloudEvent, with an encoded fact as customData.
func (c cdEvent) with(fact json.RawMessage) (json.RawMessage, error) {
	const before, after = `,"customData":`, `,"customDataContentType":"` + event.MediaType + `"}`
	envelope, err := json.Marshal(c)
	if err != nil {
		return nil, err //nolint:wrapcheck // Wrapped by From.
	}
	data := make(json.RawMessage, 0, len(envelope)+len(before)+len(fact)+len(after))
	return append(append(append(append(data, envelope[:len(envelope)-1]...), before...), fact...), after...), nil
}

type eventContext struct {
	SpecVersion string `json:"specversion"`
	ID          string `json:"id"`
	Source      string `json:"source"`
	Type        string `json:"type"`
	Timestamp   string `json:"timestamp"`
}

type subject struct {
	ID      string         `json:"id"`
	Source  string         `json:"source"`
	Content subjectContent `json:"content"`
}

type subjectContent struct {
	Environment *reference `json:"environment,omitempty"`
	ArtifactID  string     `json:"artifactId,omitempty"` //nolint:tagliatelle // As in CDEvents.
	Name        string     `json:"name,omitempty"`
	URI         string     `json:"uri,omitempty"`
}

type reference struct {
	ID     string `json:"id"`
	Source string `json:"source,omitempty"`
}

// Of encodes a fact as an event of the deploys service in a cell. Equal facts have equal bytes. It returns an error for
// an incomplete fact.
func Of(cell string, fact events.DeployFact) (event.Event, error) {
	encoded, err := json.Marshal(fact)
	if err != nil {
		w := fact.Workload
		return event.Event{}, fmt.Errorf("deploy fact %s of %s %s/%s: %w", fact.Fact, w.Kind, w.Namespace, w.Name, err)
	}
	return From(cell, fact, encoded)
}

// From is like [Of] for a fact that is encoded as JSON already.
func From(cell string, fact events.DeployFact, encoded json.RawMessage) (event.Event, error) {
	w := fact.Workload
	if fact.Fact == "" || w.ClusterUID == "" || w.Kind == "" || w.Name == "" {
		return event.Event{},
			fmt.Errorf("deploy fact %q of %s %q: name, cluster, and kind and name of the workload are required",
				fact.Fact, w.Kind, w.Name)
	}
	source := event.ServiceSource(cell, service)
	a := event.Attributes{
		Type: Type(fact), Source: source, Subject: subjectID(w), ID: rollout.ID(fact),
		Time: fact.OccurredAt.UTC().Truncate(time.Millisecond),
	}
	data, err := cdEvent{
		Context: eventContext{
			SpecVersion: specVersion, ID: a.ID, Source: source, Type: a.Type, Timestamp: a.Time.Format(time.RFC3339Nano),
		},
		Subject: subject{ID: a.Subject, Source: source, Content: content(fact)},
	}.with(encoded)
	if err != nil {
		return event.Event{}, fmt.Errorf("deploy fact %s of %s %s/%s: %w", fact.Fact, w.Kind, w.Namespace, w.Name, err)
	}
	return event.New(a, data)
}

// Read returns the fact of an event of this or another version. It returns an error for an event without a fact.
func Read(e event.Event) (events.DeployFact, error) {
	if !strings.HasPrefix(e.Type(), standard) && !strings.HasPrefix(e.Type(), custom) {
		return events.DeployFact{}, fmt.Errorf("event %s: type %q is not a type of deploy facts", e.ID(), e.Type())
	}
	var read struct {
		CustomData *events.DeployFact `json:"customData"` //nolint:tagliatelle // As in CDEvents.
	}
	if err := json.Unmarshal(e.Data(), &read); err != nil {
		return events.DeployFact{}, fmt.Errorf("event %s: decode the CDEvent: %w", e.ID(), err)
	}
	if read.CustomData == nil || read.CustomData.Fact == "" {
		return events.DeployFact{}, fmt.Errorf("event %s: %w", e.ID(), errNoFact)
	}
	return *read.CustomData, nil
}

var errNoFact = errors.New("customData is not a deploy fact")

// Type returns the CDEvent type of a fact, such as dev.cdevents.service.deployed.0.3.0.
func Type(fact events.DeployFact) string {
	switch fact.Fact {
	case events.FactCompleted:
		return standard + "service." + completion(fact) + ".0.3.0"
	case events.FactRemoved:
		return standard + "service.removed.0.3.0"
	case events.FactEnvironmentReady:
		return standard + "service.published.0.3.0"
	case events.FactEnvironmentStarted:
		return standard + "environment.created.0.3.0"
	case events.FactEnvironmentRemoved:
		return standard + "environment.deleted.0.3.0"
	default:
		return custom + strings.ReplaceAll(string(fact.Fact), "_", "") + ".0.1.0"
	}
}

// completion returns the predicate for a completed rollout.
func completion(fact events.DeployFact) string {
	if fact.Rollout == nil {
		return "upgraded"
	}
	switch fact.Rollout.Change {
	case events.ChangeCreated:
		return "deployed"
	case events.ChangeRolledBack:
		return "rolledback"
	default:
		return "upgraded"
	}
}

// subjectID returns <namespace>/<kind>/<name>, with _ for no namespace.
func subjectID(w events.Workload) string {
	namespace := w.Namespace
	if namespace == "" {
		namespace = "_"
	}
	return namespace + "/" + w.Kind + "/" + w.Name
}

// content returns the subject content of the fact's type.
func content(fact events.DeployFact) subjectContent {
	cluster := &reference{ID: fact.Workload.ClusterUID}
	switch fact.Fact {
	case events.FactCompleted:
		return subjectContent{Environment: cluster, ArtifactID: artifact(fact)}
	case events.FactRemoved, events.FactEnvironmentReady:
		return subjectContent{Environment: cluster}
	case events.FactEnvironmentStarted:
		c := subjectContent{Name: fact.Workload.Name}
		if fact.Environment != nil && isURI(fact.Environment.Url) {
			c.URI = fact.Environment.Url
		}
		return c
	case events.FactEnvironmentRemoved:
		return subjectContent{Name: fact.Workload.Name}
	default:
		return subjectContent{}
	}
}
