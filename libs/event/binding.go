package event

import (
	"fmt"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"
	"github.com/nats-io/nats.go"
)

const (
	attributePrefix   = "ce-"
	contentTypeHeader = "Content-Type"
	structuredType    = "application/cloudevents"
	// TraceParent is the CloudEvents extension, and the NATS header beside it, that carries the W3C
	// trace context.
	TraceParent = "traceparent"
)

// Encode returns the event as a message in binary mode. A traceparent extension is also set as the header of that
// name.
func Encode(e Event, subject string) (*nats.Msg, error) {
	if err := e.Validate(); err != nil {
		return nil, fmt.Errorf("encode event %s: %w", e.ID(), err)
	}
	header := make(nats.Header, 10+len(e.Extensions()))
	var malformed error
	set := func(name, value string) {
		if !utf8.ValidString(value) {
			malformed = fmt.Errorf("encode event %s: attribute %s: is not valid UTF-8", e.ID(), name)
		}
		if value != "" {
			header[attributePrefix+name] = []string{escapeValue(value)}
		}
	}
	set("specversion", e.SpecVersion())
	set("id", e.ID())
	set("source", e.Source())
	set("type", e.Type())
	set("subject", e.Subject())
	set("datacontenttype", e.DataContentType())
	set("dataschema", e.DataSchema())
	if t := e.Time(); !t.IsZero() {
		set("time", types.FormatTime(t))
	}
	for name, value := range e.Extensions() {
		text, err := types.Format(value)
		if err != nil {
			return nil, fmt.Errorf("encode event %s: extension %s: %w", e.ID(), name, err)
		}
		set(name, text)
		if name == TraceParent {
			header[TraceParent] = []string{text}
		}
	}
	if malformed != nil {
		return nil, malformed
	}
	return &nats.Msg{Subject: subject, Header: header, Data: e.DataEncoded}, nil
}

// Decode reads an event from a message's headers and payload, binary or structured, and validates
// it. The payload is kept, not copied.
func Decode(header nats.Header, data []byte) (Event, error) {
	for name, values := range header {
		if strings.EqualFold(name, contentTypeHeader) && len(values) > 0 && isStructured(values[0]) {
			return UnmarshalStructured(data)
		}
	}
	ctx := &cloudevents.EventContextV1{}
	version := ""
	for name, values := range header {
		if len(name) <= len(attributePrefix) || !strings.EqualFold(name[:len(attributePrefix)], attributePrefix) {
			continue
		}
		attribute := strings.ToLower(name[len(attributePrefix):])
		if len(values) != 1 {
			return Event{}, fmt.Errorf("header %s: %d values, must be one", name, len(values))
		}
		value, err := unescapeValue(values[0])
		if err != nil {
			return Event{}, fmt.Errorf("header %s: %w", name, err)
		}
		if attribute == "specversion" {
			version = value
			continue
		}
		if err := setAttribute(ctx, attribute, value); err != nil {
			return Event{}, fmt.Errorf("header %s: %w", name, err)
		}
	}
	if version != cloudevents.CloudEventsVersionV1 {
		return Event{}, fmt.Errorf(
			"header ce-specversion: %q, must be %q: the message is not a CloudEvent", version, cloudevents.CloudEventsVersionV1,
		)
	}
	if invalid := ctx.Validate(); invalid != nil {
		return Event{}, fmt.Errorf("event %s: %w", ctx.ID, invalid)
	}
	e := Event{Context: ctx}
	if len(data) > 0 {
		e.DataEncoded = data
	}
	return e, nil
}

// isStructured reports whether a media type is application/cloudevents, with any suffix and parameters, in any
// case.
func isStructured(contentType string) bool {
	return len(contentType) >= len(structuredType) && strings.EqualFold(contentType[:len(structuredType)], structuredType)
}

func setAttribute(ctx *cloudevents.EventContextV1, name, value string) error {
	switch name {
	case "id":
		ctx.ID = value
	case "type":
		ctx.Type = value
	case "source":
		ref, err := url.Parse(value)
		if err != nil {
			return fmt.Errorf("%q is not a URI reference", value)
		}
		ctx.Source = types.URIRef{URL: *ref}
	case "subject":
		ctx.Subject = new(value)
	case "datacontenttype":
		ctx.DataContentType = new(value)
	case "dataschema":
		uri, err := url.Parse(value)
		if err != nil {
			return fmt.Errorf("%q is not a URI", value)
		}
		ctx.DataSchema = &types.URI{URL: *uri}
	case "time":
		t, err := time.Parse(time.RFC3339Nano, value)
		if err != nil {
			return fmt.Errorf("%q is not an RFC 3339 time", value)
		}
		ctx.Time = &types.Timestamp{Time: t}
	default:
		if err := ctx.SetExtension(name, value); err != nil {
			return fmt.Errorf("extension: %w", err)
		}
	}
	return nil
}
