package desired

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	kubejson "k8s.io/apimachinery/pkg/util/json"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/dispatcher/failure"
)

// ErrUnknownWorkspace is returned when the subject does not contain a workspace id of this agent.
var ErrUnknownWorkspace = errors.New("the subject names no workspace of this agent")

// maxRevision is the largest integer that a JSON number represents exactly.
const maxRevision = 1<<53 - 1

// payload keeps manifests as raw JSON: decoding into float64 would change large integers.
type payload struct {
	WorkspaceID     string                   `json:"workspace_id"`
	Name            string                   `json:"name"`
	Namespace       string                   `json:"namespace"`
	DesiredRevision int64                    `json:"desired_revision"`
	Target          events.DesiredTarget     `json:"target"`
	Manifests       []json.RawMessage        `json:"manifests"`
	Secrets         []events.SecretReference `json:"secrets"`
}

// Decode decodes the message of a desired event. The error is [ErrUnknownWorkspace] or a Malformed
// [failure.Failure]. With a Failure, the workspace's ID is set, and its Revision if it was readable.
func Decode(cell topology.Cell, agent int64, subject string, header nats.Header, data []byte) (Workspace, error) {
	id, err := workspaceOf(cell, agent, subject)
	if err != nil {
		return Workspace{}, err
	}
	w := Workspace{ID: id, Size: len(data)}
	e, err := event.Decode(header, data)
	if err != nil {
		return w, malformed("the desired event is not a CloudEvent: %v", err)
	}
	var p payload
	if err := json.Unmarshal(e.Data(), &p); err != nil {
		return w, malformed("the desired event cannot be read: %v", err)
	}
	w.Revision = max(p.DesiredRevision, 0)
	switch {
	case e.Type() != events.TypeDesiredWorkspace:
		return w, malformed("the event type is %s, expected %s", e.Type(), events.TypeDesiredWorkspace)
	case p.WorkspaceID != id:
		return w, malformed("the event for workspace %s is about workspace %q", id, p.WorkspaceID)
	case p.DesiredRevision < 1:
		return w, malformed("the desired revision %d is less than 1", p.DesiredRevision)
	case p.DesiredRevision > maxRevision:
		return w, malformed("the desired revision %d is above %d", p.DesiredRevision, int64(maxRevision))
	}
	if err := p.fill(&w); err != nil {
		return w, malformed("%v", err)
	}
	return w, nil
}

// fill sets all fields of a workspace but its ID and its size.
func (p *payload) fill(w *Workspace) error {
	w.Revision = p.DesiredRevision
	w.Name, w.Namespace, w.Target, w.Secrets = p.Name, p.Namespace, p.Target, p.Secrets
	for i, raw := range p.Manifests {
		object, err := decodeObject(raw)
		if err != nil {
			return fmt.Errorf("manifest %d: %w", i+1, err)
		}
		w.Objects = append(w.Objects, object)
	}
	return nil
}

func workspaceOf(cell topology.Cell, agent int64, subject string) (string, error) {
	parsed, err := topology.Parse(subject)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrUnknownWorkspace, err)
	}
	agentID, err := parsed.Agent()
	if err != nil || agentID != agent || parsed.Cell != cell || parsed.Family != topology.FamilyDesired ||
		len(parsed.Tokens) != 2 ||
		parsed.Tokens[1] == "" {
		return "", fmt.Errorf("%w: %q", ErrUnknownWorkspace, subject)
	}
	return parsed.Tokens[1], nil
}

func decodeObject(raw json.RawMessage) (Object, error) {
	var manifest map[string]any
	if err := kubejson.Unmarshal(raw, &manifest); err != nil {
		return Object{}, fmt.Errorf("is not a JSON object: %w", err)
	}
	metadata, ok := manifest["metadata"].(map[string]any)
	if !ok {
		return Object{}, errors.New("has no metadata")
	}
	object := Object{Manifest: manifest}
	for field, target := range map[string]*string{
		"apiVersion":         &object.ApiVersion,
		"kind":               &object.Kind,
		"metadata.name":      &object.Name,
		"metadata.namespace": &object.Namespace,
	} {
		parent, key := manifest, field
		if len(field) > len("metadata.") && field[:len("metadata.")] == "metadata." {
			parent, key = metadata, field[len("metadata."):]
		}
		value, present := parent[key]
		if !present {
			continue
		}
		if *target, ok = value.(string); !ok {
			return Object{}, fmt.Errorf("%s is not a string", field)
		}
	}
	if object.ApiVersion == "" || object.Kind == "" || object.Name == "" {
		return Object{}, errors.New("lacks apiVersion, kind or metadata.name")
	}
	return object, nil
}

func malformed(format string, args ...any) *failure.Failure {
	return failure.NewFinal(
		failure.Malformed,
		nil,
		format+". It is not retried: this is a fault of the control plane, which has to send another revision",
		args...)
}
