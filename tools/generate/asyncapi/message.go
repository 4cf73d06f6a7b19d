package asyncapi

import (
	"fmt"
	"io/fs"

	"go.yaml.in/yaml/v3"

	"lockstep.internal/libs/event"
	"lockstep.internal/tools/generate/catalog"
)

const (
	cloudEventHeaders = "CloudEventHeaders"
	deadMessage       = "DeadMessage"
)

// headersSchema is what every event's headers are.
func headersSchema() map[string]any {
	text := func(description string) map[string]any {
		return map[string]any{"type": "string", "minLength": 1, "description": description}
	}
	trace := text("W3C trace context of what caused the event.")
	return map[string]any{
		"type":        "object",
		"description": "Attributes of a CloudEvent as headers of a NATS message.",
		"required":    []string{"ce-specversion", "ce-id", "ce-source", "ce-type", "ce-subject", "ce-time", "ce-datacontenttype", "ce-dataschema"},
		"properties": map[string]any{
			"ce-specversion":          map[string]any{"type": "string", "const": "1.0", "description": "Version of CloudEvents."},
			"ce-id":                   text("Id: the same whenever the same fact is told."),
			"ce-source":               text("Who wrote it: /lockstep/<cell>/<service>, or /lockstep/<cell>/agents/<agent>/<component>."),
			"ce-type":                 text("Type of the event."),
			"ce-subject":              text("What it is about."),
			"ce-time":                 map[string]any{"type": "string", "format": "date-time", "description": "When it occurred, UTC. Never used for ordering."},
			"ce-datacontenttype":      map[string]any{"type": "string", "const": event.MediaType, "description": "Media type of the payload."},
			"ce-dataschema":           map[string]any{"type": "string", "format": "uri", "description": "The JSON Schema of the payload."},
			"ce-" + event.TraceParent: trace,
			event.TraceParent:         trace,
		},
	}
}

func newMessage(e catalog.Event, examples fs.FS) (message, error) {
	sample, err := newExample(e, examples)
	if err != nil {
		return message{}, err
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

// newExample turns the structured example of a type into what travels: headers and payload.
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
	// JSON is YAML, which tells whole numbers from others.
	if err := yaml.Unmarshal(msg.Data, &sample.Payload); err != nil {
		return example{}, fmt.Errorf("schemas/examples/%s: %w", name, err)
	}
	return sample, nil
}

func newDeadMessage() message {
	return message{
		Name: "dead", Title: deadMessage, Summary: "A copy of a message that a service could not process: the original's headers and payload, and the reason in a header.",
		Headers: map[string]any{"type": "object", "description": "The original's headers, and the reason."},
		Payload: map[string]any{"description": "The original's payload, whatever it was."},
	}
}
