package event

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
)

// Event is a CloudEvent.
type Event = cloudevents.Event

// SchemaBase is where the JSON Schema of a type is: SchemaBase + "observed.tick.v1" +
// ".schema.json".
const SchemaBase = "https://lockstep.dev/schemas/events/"

// TypePrefix begins every type of Lockstep's own: TypePrefix + "observed.tick.v1".
const TypePrefix = "dev.lockstep."

// MediaType of the data of every event that Lockstep writes.
const MediaType = "application/json"

// Attributes of a new event, all required.
type Attributes struct {
	// Type such as dev.lockstep.observed.tick.v1.
	Type string
	// Source is the writer, see [ServiceSource] and [AgentSource].
	Source string
	// Subject is what the event is about, such as a workspace's id.
	Subject string
	// ID is unique for the source. If consumers must recognize a repeated event, the writer derives the
	// ID from the content.
	ID string
	// Time when it occurred.
	Time time.Time
}

// New makes an event of one of Lockstep's own types. The data is marshalled to JSON; a
// json.RawMessage is taken as it is. The error names what is missing or malformed.
func New(a Attributes, data any) (Event, error) {
	payload, isRaw := data.(json.RawMessage)
	if !isRaw {
		var err error
		if payload, err = json.Marshal(data); err != nil {
			return Event{}, fmt.Errorf("event %s: marshal data: %w", a.Type, err)
		}
	}
	e := cloudevents.New(cloudevents.CloudEventsVersionV1)
	e.SetType(a.Type)
	e.SetSource(a.Source)
	e.SetSubject(a.Subject)
	e.SetID(a.ID)
	e.SetTime(a.Time.UTC().Truncate(time.Millisecond))
	e.SetDataContentType(MediaType)
	if len(a.Type) > len(TypePrefix) && a.Type[:len(TypePrefix)] == TypePrefix {
		e.SetDataSchema(SchemaBase + a.Type[len(TypePrefix):] + ".schema.json")
	}
	e.DataEncoded = payload
	if err := e.Validate(); err != nil {
		return Event{}, fmt.Errorf("event %s: %w", a.Type, err)
	}
	return e, nil
}

// ServiceSource is the source of what a control-plane service writes: /lockstep/<cell>/<service>.
func ServiceSource(cell, service string) string { return "/lockstep/" + cell + "/" + service }

// AgentSource is the source of what a part of an agent writes:
// /lockstep/<cell>/agents/<agent>/<component>.
func AgentSource(cell string, agent int64, component string) string {
	return "/lockstep/" + cell + "/agents/" + strconv.FormatInt(agent, 10) + "/" + component
}

// MarshalStructured gives the event as structured JSON: one object, without a newline.
func MarshalStructured(e Event) ([]byte, error) {
	out, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("event %s: %w", e.ID(), err)
	}
	return out, nil
}

// UnmarshalStructured reads structured JSON and validates it.
func UnmarshalStructured(data []byte) (Event, error) {
	var e Event
	if err := json.Unmarshal(data, &e); err != nil {
		return Event{}, fmt.Errorf("structured event: %w", err)
	}
	if err := e.Validate(); err != nil {
		return Event{}, fmt.Errorf("structured event: %w", err)
	}
	return e, nil
}
