package golden

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"lockstep.internal/libs/event"
	"lockstep.internal/tools/generate/document"
)

// NewCompiler returns a JSON Schema compiler that knows the schemas by their URLs and checks
// formats.
func NewCompiler(schemas document.Set) (*jsonschema.Compiler, error) {
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	for _, name := range schemas.Names() {
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schemas.Raw(name)))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if err := compiler.AddResource(event.SchemaBase+name, doc); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return compiler, nil
}

// Faults lists the events of a folder that the schemas refuse, a sentence for each fault. The
// folder holds structured JSON in files named by event type.
func Faults(schemas document.Set, dir fs.FS) ([]string, error) {
	compiler, err := NewCompiler(schemas)
	if err != nil {
		return nil, err
	}
	var sentences []string
	err = fs.WalkDir(dir, ".", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		raw, err := fs.ReadFile(dir, file)
		if err != nil {
			return err //nolint:wrapcheck // Wrapped below.
		}
		for _, sentence := range eventFaults(compiler, strings.TrimSuffix(path.Base(file), ".json"), raw) {
			sentences = append(sentences, file+": "+sentence)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	return sentences, nil
}

func eventFaults(compiler *jsonschema.Compiler, name string, raw []byte) []string {
	e, err := event.UnmarshalStructured(raw)
	if err != nil {
		return []string{err.Error()}
	}
	if e.Type() != event.TypePrefix+name {
		return []string{fmt.Sprintf("is of type %s, must be %s", e.Type(), event.TypePrefix+name)}
	}
	schema, err := compiler.Compile(event.SchemaBase + name + document.Suffix)
	if err != nil {
		return []string{"there is no schema of its type that can be used: " + err.Error()}
	}
	data, err := jsonschema.UnmarshalJSON(bytes.NewReader(e.Data()))
	if err != nil {
		return []string{"data is no JSON: " + err.Error()}
	}
	var invalid *jsonschema.ValidationError
	if !errors.As(schema.Validate(data), &invalid) {
		return nil
	}
	return leaves(invalid)
}

func leaves(invalid *jsonschema.ValidationError) []string {
	if len(invalid.Causes) == 0 {
		what := invalid.ErrorKind.LocalizedString(message.NewPrinter(language.English))
		return []string{"/data/" + strings.Join(invalid.InstanceLocation, "/") + ": " + what}
	}
	var sentences []string
	for _, cause := range invalid.Causes {
		sentences = append(sentences, leaves(cause)...)
	}
	return sentences
}
