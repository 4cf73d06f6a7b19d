package events

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// maxFaults that one error tells; data that is all wrong needs no longer list.
const maxFaults = 10

// compiled is every type's schema by the type's name, made once when it is first asked for.
//
//nolint:gochecknoglobals // Constant once made; compiling takes milliseconds, which not every program that imports the types shall pay.
var compiled = sync.OnceValues(compile)

func compile() (map[string]*jsonschema.Schema, error) {
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.AssertFormat()
	files, err := schemas.ReadDir("schemas")
	if err != nil {
		return nil, fmt.Errorf("embedded event schemas: %w", err)
	}
	for _, file := range files {
		raw, err := schemas.ReadFile("schemas/" + file.Name())
		if err != nil {
			return nil, fmt.Errorf("embedded event schemas: %w", err)
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
		if err != nil {
			return nil, fmt.Errorf("embedded event schema %s: %w", file.Name(), err)
		}
		if err := compiler.AddResource(schemaBase+file.Name(), doc); err != nil {
			return nil, fmt.Errorf("embedded event schema %s: %w", file.Name(), err)
		}
	}
	byName := map[string]*jsonschema.Schema{}
	for _, t := range Types() {
		schema, err := compiler.Compile(schemaBase + strings.TrimPrefix(t.Name, Prefix) + schemaSuffix)
		if err != nil {
			return nil, fmt.Errorf("embedded event schema of %s: %w", t.Name, err)
		}
		byName[t.Name] = schema
	}
	return byName, nil
}

// Validate says whether data is what an event of that type may carry. The error names the type and, for each of the first ten faults, the place as a
// JSON pointer and what is wrong there. A type that is not of the registry is an error. It may be called at any number of places at once.
func Validate(eventType string, data []byte) error {
	byName, err := compiled()
	if err != nil {
		return err
	}
	schema, ok := byName[eventType]
	if !ok {
		return fmt.Errorf("event type %q: is not in the registry of event schemas", shorten(eventType))
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("%s: data is no JSON: %w", eventType, err)
	}
	err = schema.Validate(value)
	var invalid *jsonschema.ValidationError
	if !errors.As(err, &invalid) {
		return err //nolint:wrapcheck // nil: the library returns no other error.
	}
	sentences := faults(invalid, value)
	if more := len(sentences) - maxFaults; more > 0 {
		sentences = append(sentences[:maxFaults], fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("%s: %s", eventType, strings.Join(sentences, "; "))
}
