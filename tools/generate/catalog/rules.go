package catalog

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"lockstep.internal/libs/event"
	"lockstep.internal/tools/generate/document"
)

const dialect = "https://json-schema.org/draft/2020-12/schema"

var (
	pascalCase = regexp.MustCompile(`^[A-Z][A-Za-z0-9]*$`)
	snakeCase  = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
)

// schemaKeywords are allowed in any schema. The compatibility check and the generated decoders
// support them.
func schemaKeywords() []string {
	return []string{
		"description", "type", "default", "enum", "format", "pattern", "minLength", "maxLength", "minimum", "maximum",
		"items", "minItems", "maxItems", "properties", "required", "additionalProperties", KnownValuesKeyword,
		EncodedKeyword,
	}
}

// rootKeywords are also allowed at the root of a file.
func rootKeywords() []string { return []string{"$schema", "$id", "title", "$defs", SubjectKeyword} }

// rules checks one file.
type rules struct{ file string }

func (r rules) fault(pointer, format string, args ...any) error {
	if pointer == "" {
		pointer = "/"
	}
	return fmt.Errorf("%s: %s: %s", r.file, pointer, fmt.Sprintf(format, args...))
}

func (r rules) document(root document.Node) []error {
	var faults []error
	if root.Object() == nil {
		return []error{r.fault("", "must be an object")}
	}
	for key, want := range map[string]string{"$schema": dialect, "$id": event.SchemaBase + r.file} {
		if got := root.At(key).Text(); got != want {
			faults = append(faults, r.fault("", "%s %q must be %q", key, got, want))
		}
	}
	if !pascalCase.MatchString(root.At("title").Text()) {
		faults = append(faults, r.fault("",
			"title %q must be in PascalCase, as the name of the Go type", root.At("title").Text()))
	}
	if r.file == Common {
		if root.Has(SubjectKeyword) || root.Has("properties") {
			faults = append(faults, r.fault("", "must contain only definitions"))
		}
	} else if root.At("type").Text() != "object" {
		faults = append(faults, r.fault("", "the data of an event must be of type object"))
	}
	faults = append(faults, r.schema("", root, append(schemaKeywords(), rootKeywords()...), true)...)
	defs := root.At("$defs")
	for _, name := range defs.Keys() {
		if !pascalCase.MatchString(name) {
			faults = append(faults, r.fault("/$defs/"+name,
				"the name of a definition must be in PascalCase, as the name of the Go type"))
		}
		faults = append(faults, r.schema("/$defs/"+name, defs.At(name), schemaKeywords(), true)...)
	}
	return faults
}

// schema checks one schema and its children. Only items need no description.
func (r rules) schema(pointer string, n document.Node, allowed []string, described bool) []error {
	if n.Object() == nil {
		return []error{r.fault(pointer, "must be a schema object")}
	}
	var faults []error
	if text := n.At("description").Text(); described && !strings.HasSuffix(text, ".") {
		faults = append(faults, r.fault(pointer, "the description must be a sentence that ends with a period, not %q", text))
	}
	if n.Has("$ref") {
		return append(faults, r.reference(pointer, n)...)
	}
	for _, key := range n.Keys() {
		if !slices.Contains(allowed, key) {
			faults = append(faults, r.fault(pointer, "keyword %q is not supported by the generator", key))
		}
	}
	faults = append(faults, r.kind(pointer, n)...)
	properties := n.At("properties")
	for _, name := range properties.Keys() {
		if !snakeCase.MatchString(name) {
			faults = append(faults, r.fault(pointer+"/properties/"+name, "the name of a property must be in snake_case"))
		}
		faults = append(faults, r.schema(pointer+"/properties/"+name, properties.At(name), schemaKeywords(), true)...)
	}
	for _, name := range n.At("required").Texts() {
		if !properties.Has(name) {
			faults = append(faults, r.fault(pointer, "required %q is not a property", name))
		}
	}
	if n.Has("items") {
		faults = append(faults, r.schema(pointer+"/items", n.At("items"), schemaKeywords(), false)...)
	}
	if more := n.At("additionalProperties"); n.Has("additionalProperties") {
		if more.Object() == nil {
			faults = append(faults, r.fault(pointer,
				"additionalProperties must be absent or a schema, because events may gain fields"))
		} else {
			faults = append(faults, r.schema(pointer+"/additionalProperties", more, schemaKeywords(), false)...)
		}
	}
	return faults
}

func (r rules) reference(pointer string, n document.Node) []error {
	var faults []error
	for _, key := range n.Keys() {
		if key != "$ref" && key != "description" {
			faults = append(faults, r.fault(pointer, "keyword %q beside $ref: only a description is allowed", key))
		}
	}
	if _, err := n.Resolve(); err != nil {
		faults = append(faults, r.fault(pointer, "%s", err))
	}
	return faults
}

// kind checks the type of a schema.
func (r rules) kind(pointer string, n document.Node) []error {
	var faults []error
	kinds := []string{"string", "integer", "boolean", "object", "array"}
	isRootOfDefinitions := r.file == Common && pointer == ""
	kind := n.At("type").Text()
	if !isRootOfDefinitions && !slices.Contains(kinds, kind) {
		faults = append(faults, r.fault(pointer, "type %q must be one of %s", kind, strings.Join(kinds, ", ")))
	}
	if kind == "array" && !n.Has("items") {
		faults = append(faults, r.fault(pointer, "an array needs items"))
	}
	if n.Has(EncodedKeyword) {
		isTrue, _ := n.At(EncodedKeyword).Value.(bool)
		if !isTrue || kind != "object" || n.Has("properties") || n.Has("additionalProperties") {
			faults = append(faults, r.fault(pointer, "%s must be true, on an object without properties", EncodedKeyword))
		}
	}
	if n.Has(KnownValuesKeyword) {
		if kind != "string" || n.Has("enum") || len(n.At(KnownValuesKeyword).Texts()) == 0 {
			faults = append(faults, r.fault(pointer,
				"%s must be a list of strings, on a string without enum", KnownValuesKeyword))
		}
	}
	return faults
}
