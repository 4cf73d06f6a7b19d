package observed

import (
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/rollout"
)

// Decoder reads the messages of a cell. It is for one goroutine at a time.
type Decoder struct {
	cell   topology.Cell
	prefix string
	// clusters begins the subjects of what is decided about whole clusters.
	clusters string
	reader   *reader
	places   *kept[place]
}

// place is a subject taken apart, and what was told there last.
type place struct {
	agentID int64
	// source of what its agent writes, and tokens after the agent.
	source string
	tokens []string

	key rollout.Key
	id  uuid.UUID
}

// NewDecoder makes a decoder that has read nothing.
func NewDecoder(cell topology.Cell) *Decoder {
	prefix := cell.Prefix(topology.FamilyObserved) + "."
	return &Decoder{cell: cell, prefix: prefix, clusters: prefix + topology.TokenCluster + ".", reader: newReader(), places: newKept[place](rememberedPlaces)}
}

// Concerns says whether a subject is one that this service reads. What is told of workspaces is not, but for what both share.
func (d *Decoder) Concerns(subject string) bool {
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

const (
	serviceName    = "deploys"
	releasedSuffix = ".released"
)

// release reads that a cluster is released, which the service itself says and no agent can.
func (d *Decoder) release(subject string, header nats.Header, data []byte) (Observed, error) {
	parsed, err := topology.Parse(subject)
	if err != nil {
		return Observed{}, fmt.Errorf("subject: %w", err)
	}
	e, err := event.Decode(header, data)
	if err != nil {
		return Observed{}, fmt.Errorf("event: %w", err)
	}
	if source := event.ServiceSource(string(d.cell), serviceName); e.Source() != source || e.Type() != events.TypeObservedClusterReleased || len(parsed.Tokens) != 3 {
		return Observed{}, fmt.Errorf("type %.200q of source %.200q: only %s writes on %.300s, releases alone", e.Type(), e.Source(), source, subject)
	}
	o := Observed{}
	if err := o.released(parsed.Tokens[1], e); err != nil {
		return Observed{}, err
	}
	return o, nil
}

// Decode reads a message.
func (d *Decoder) Decode(subject string, header nats.Header, data []byte) (Observed, error) {
	if !d.Concerns(subject) {
		return Observed{}, nil
	}
	if strings.HasPrefix(subject, d.clusters) {
		return d.release(subject, header, data)
	}
	at, err := d.place(subject)
	if err != nil {
		return Observed{}, err
	}
	o := Observed{AgentID: at.agentID}
	if err := d.read(&o, at, header, data); err != nil {
		return Observed{}, err
	}
	if o.Key.Kind != "" {
		if o.Key != at.key {
			at.key, at.id = o.Key, Identify(o.Key.ClusterUID, o.Key.Namespace, o.Key.Kind, o.Key.Name)
		}
		o.ID = at.id
	}
	return o, nil
}

func (d *Decoder) place(subject string) (*place, error) {
	at := d.places.slotOf(subject)
	if at.text == subject {
		return &at.value, nil
	}
	parsed, err := topology.Parse(subject)
	if err != nil {
		return nil, fmt.Errorf("subject: %w", err)
	}
	agentID, err := parsed.Agent()
	if err != nil {
		return nil, fmt.Errorf("subject: %w", err)
	}
	at.text, at.value = subject, place{agentID: agentID, source: event.AgentSource(string(d.cell), agentID, watcherComponent), tokens: parsed.Tokens[1:]}
	return &at.value, nil
}

func (d *Decoder) read(o *Observed, at *place, header nats.Header, data []byte) error {
	kind, source, trace, plain := attributes(header)
	var e event.Event
	if !plain || kind != events.TypeObservedWorkload && kind != events.TypeObservedWorkloadRevision && kind != events.TypeObservedTick {
		var err error
		if e, err = event.Decode(header, data); err != nil {
			return fmt.Errorf("event: %w", err)
		}
		kind, source, trace, data = e.Type(), e.Source(), header.Get(event.TraceParent), e.Data()
	}
	if source != at.source {
		return fmt.Errorf("source %.200q: only %s writes on …%.300s", source, at.source, strings.Join(at.tokens, "."))
	}
	if len(trace) <= maxToken {
		o.Trace = trace
	}
	switch kind {
	case events.TypeObservedWorkload:
		return o.workload(d.reader, at.tokens, data)
	case events.TypeObservedWorkloadRevision:
		return o.revision(d.reader, at.tokens, data)
	case events.TypeObservedTick:
		return o.tick(at.tokens, data)
	case events.TypeObservedResyncBegun:
		return o.begun(at.tokens, e)
	case events.TypeObservedResyncEnded:
		return o.ended(at.tokens, e)
	case events.TypeObservedRejected:
		return o.rejected(at.tokens, e)
	default:
		return fmt.Errorf("type %.200q: is not known to this version of the service, or does not belong on …%.300s", kind, strings.Join(at.tokens, "."))
	}
}

// attributes of an event in binary mode, as Lockstep writes it. plain is false for any other, which package event makes sense of.
func attributes(header nats.Header) (kind, source, trace string, plain bool) {
	version, id := "", ""
	for name, values := range header {
		if len(values) != 1 {
			return "", "", "", false
		}
		value := values[0]
		switch name {
		case "ce-specversion":
			version = value
		case "ce-id":
			id = value
		case "ce-type":
			kind = value
		case "ce-source":
			source = value
		case "ce-subject":
			if value == "" {
				return "", "", "", false
			}
		case "ce-time":
			if _, err := time.Parse(time.RFC3339Nano, value); err != nil {
				return "", "", "", false
			}
		case "ce-datacontenttype":
			if value != event.MediaType {
				return "", "", "", false
			}
		case "ce-dataschema":
			if !strings.HasPrefix(value, event.SchemaBase) {
				return "", "", "", false
			}
		case event.TraceParent:
			trace = value
		case "ce-" + event.TraceParent:
		default:
			if !strings.HasPrefix(name, "Nats-") {
				return "", "", "", false
			}
		}
	}
	plain = version == "1.0" && id != "" && kind != "" && source != "" && !strings.ContainsAny(source, `%"`) && !strings.ContainsAny(kind, `%"`)
	return kind, source, trace, plain
}
