package asyncapi

import (
	"fmt"
	"io/fs"
	"maps"

	"go.yaml.in/yaml/v3"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/tools/generate/catalog"
)

const (
	cloudEventHeaders = "CloudEventHeaders"
	deadMessage       = "DeadMessage"
)

// headersSchema is the schema of the headers of every event.
func headersSchema() map[string]any {
	text := func(description string) map[string]any {
		return map[string]any{"type": "string", "minLength": 1, "description": description}
	}
	constant := func(value, description string) map[string]any {
		return map[string]any{"type": "string", "const": value, "description": description}
	}
	formatted := func(format, description string) map[string]any {
		return map[string]any{"type": "string", "format": format, "description": description}
	}
	trace := text("W3C trace context of the cause of the event.")
	return map[string]any{
		"type":        "object",
		"description": "Attributes of a CloudEvent as headers of a NATS message.",
		"required":    append(requiredHeaders(), "ce-dataschema"),
		"properties": map[string]any{
			"ce-specversion": constant("1.0", "Version of CloudEvents."),
			"ce-id":          text("Id of the event. A repeated event has the same id."),
			"ce-source": text("Writer of the event: /lockstep/<cell>/<service>, " +
				"or /lockstep/<cell>/agents/<agent>/<component>."),
			"ce-type":                 text("Type of the event."),
			"ce-subject":              text("Subject of the event."),
			"ce-time":                 formatted("date-time", "Time of the event, UTC. Never used for ordering."),
			"ce-datacontenttype":      constant(event.MediaType, "Media type of the payload."),
			"ce-dataschema":           formatted("uri", "The JSON Schema of the payload."),
			"ce-" + event.TraceParent: trace,
			event.TraceParent:         trace,
		},
	}
}

// requiredHeaders returns the headers that every event has, CDEvents included.
func requiredHeaders() []string {
	return []string{
		"ce-specversion", "ce-id", "ce-source", "ce-type", "ce-subject", "ce-time", "ce-datacontenttype",
	}
}

func newMessage(e catalog.Event, examples fs.FS) (message, error) {
	sample, err := newExample(e, examples)
	if err != nil {
		return message{}, err
	}
	if e.Stream.Family == topology.FamilyDeploy {
		return newCDEvent(e, sample), nil
	}
	return message{
		Name: e.Type, Title: e.Title, Summary: e.Description, ContentType: event.MediaType,
		Headers: map[string]any{
			"type":  "object",
			"allOf": []any{reference{Ref: "#/components/schemas/" + cloudEventHeaders}},
			"properties": map[string]any{
				"ce-type":       map[string]any{"const": e.Type},
				"ce-dataschema": map[string]any{"const": event.SchemaBase + e.File},
			},
		},
		Payload:  reference{Ref: "./events/" + e.File},
		Examples: []example{sample},
	}, nil
}

// newCDEvent returns the schema of a fact as the customData of a CDEvent.
func newCDEvent(e catalog.Event, sample example) message {
	text := func(description string) map[string]any {
		return map[string]any{"type": "string", "description": description}
	}
	object := func(description string, properties map[string]any) map[string]any {
		return map[string]any{"type": "object", "description": description, "properties": properties}
	}
	id, source := sample.Headers["ce-id"], sample.Headers["ce-source"]
	const kind = "dev.cdevents.service.upgraded.0.3.0"
	environment := map[string]any{"id": "6f1d9c34-0b5e-4c7e-9f0a-2d1f6f4f5a10"}
	payload := map[string]any{
		"context": map[string]any{
			"specversion": cdeventsVersion, "id": id, "source": source, "type": kind, "timestamp": sample.Headers["ce-time"],
		},
		"subject": map[string]any{
			"id": sample.Headers["ce-subject"], "source": source, "content": map[string]any{"environment": environment},
		},
		"customData": sample.Payload, "customDataContentType": event.MediaType,
	}
	headers := maps.Clone(sample.Headers)
	headers["ce-type"] = kind
	delete(headers, "ce-dataschema")
	return message{
		Name: e.Type, Title: e.Title, Summary: cdeventSummary, ContentType: event.MediaType,
		Headers: map[string]any{
			"type":        "object",
			"description": "Attributes of a CloudEvent as headers of a NATS message, without ce-dataschema.",
			"required":    requiredHeaders(),
			"properties": map[string]any{
				"ce-type": map[string]any{
					"type": "string", "pattern": `^dev\.cdevents(\.(service|environment)|x\.lockstep-rollout)\.`,
					"description": "Type of the CDEvent.",
				},
				"ce-id":      text("Id of the fact. A repeated fact has the same id."),
				"ce-subject": text("<namespace>/<kind>/<name> of the workload or environment; _ stands for no namespace."),
			},
		},
		Payload: map[string]any{
			"type": "object", "required": []string{"context", "subject", "customData", "customDataContentType"},
			"properties": map[string]any{
				"context": object("The attributes of the CloudEvent.", map[string]any{
					"type": text("As ce-type."), "id": text("As ce-id."),
				}),
				"subject":               object("The subject as in CDEvents.", map[string]any{"id": text("As ce-subject.")}),
				"customData":            reference{Ref: "./events/" + e.File},
				"customDataContentType": map[string]any{"const": event.MediaType},
			},
		},
		Examples: []example{{Headers: headers, Payload: payload}},
	}
}

// cdeventsVersion is the version of CDEvents of facts.
const cdeventsVersion = "0.5.1"

const cdeventSummary = `A fact about a rollout, a scaling, a workload or an environment, as a CDEvent 0.5.1.
Its customData is the complete fact. The subject's last token is the fact.

The types are dev.cdevents.service.deployed, upgraded or rolledback.0.3.0 for completed, depending on what the rollout
changed; service.removed.0.3.0 for removed; environment.created, service.published and environment.deleted.0.3.0 for
environment_started, _ready and _removed. Every other fact has
dev.cdeventsx.lockstep-rollout.<fact without underscores>.0.1.0.

A subscriber that lockstep subscriber create has added reads its own durable consumer, subscriber-<name> of stream
DEPLOYS, or receives the same subjects live as <name>.live. A live message has the headers Nats-Stream and
Nats-Sequence, which are its position on the stream. Facts of one workload are in order, are numbered by sequence, and
are on the stream once.
`

// newExample converts the structured example of a type to headers and payload.
func newExample(e catalog.Event, examples fs.FS) (example, error) {
	name := e.Name + ".json"
	raw, err := fs.ReadFile(examples, name)
	if err != nil {
		return example{}, fmt.Errorf("example of %s: %w: write schemas/examples/%s", e.Name, err, name)
	}
	structured, err := event.UnmarshalStructured(raw)
	if err != nil {
		return example{}, fmt.Errorf("schemas/examples/%s: %w", name, err)
	}
	if structured.Type() != e.Type {
		return example{}, fmt.Errorf("schemas/examples/%s: is of type %s, must be %s", name, structured.Type(), e.Type)
	}
	msg, err := event.Encode(structured, "example")
	if err != nil {
		return example{}, fmt.Errorf("schemas/examples/%s: %w", name, err)
	}
	sample := example{Headers: map[string]any{}}
	for key, values := range msg.Header {
		sample.Headers[key] = values[0]
	}
	// Parse as YAML, which distinguishes integers from other numbers.
	if err := yaml.Unmarshal(msg.Data, &sample.Payload); err != nil {
		return example{}, fmt.Errorf("schemas/examples/%s: %w", name, err)
	}
	return sample, nil
}

func newDeadMessage() message {
	return message{
		Name: "dead", Title: deadMessage,
		Summary: "A copy of a message that a service could not process: the original's headers and payload, " +
			"and the reason in a header.",
		Headers: map[string]any{"type": "object", "description": "The original's headers, and the reason."},
		Payload: map[string]any{"description": "The original's payload, whatever it was."},
	}
}
