package gotypes

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"

	"lockstep.internal/tools/generate/catalog"
	"lockstep.internal/tools/generate/document"
)

// Model holds the Go types of all event schemas.
type Model struct {
	catalog catalog.Catalog
	types   map[string]document.Node // named types by Go name
}

// NewModel collects the Go types of a catalog. It returns an error if two different schemas claim
// one name.
func NewModel(c catalog.Catalog) (Model, error) {
	m := Model{catalog: c, types: map[string]document.Node{}}
	var faults []error
	for _, file := range c.Schemas.Names() {
		root := c.Schemas.Root(file)
		if file != catalog.Common {
			faults = append(faults, m.add(root.At("title").Text(), root))
		}
		definitions := root.At("$defs")
		for _, name := range definitions.Keys() {
			if n := definitions.At(name); isNamed(n) {
				faults = append(faults, m.add(name, n))
			}
		}
	}
	return m, errors.Join(faults...)
}

// add registers a named type and the types that its properties define in place.
func (m Model) add(name string, n document.Node) error {
	if other, taken := m.types[name]; taken {
		if !reflect.DeepEqual(other.Value, n.Value) {
			return fmt.Errorf("%s and %s: define different types with the name %s: rename one", other.File(), n.File(), name)
		}
		return nil
	}
	m.types[name] = n
	properties := n.At("properties")
	var faults []error
	for _, key := range properties.Keys() {
		if property := properties.At(key); isNamed(property) {
			faults = append(faults, m.add(exported(key), property))
		}
	}
	return errors.Join(faults...)
}

// names of all types, sorted.
func (m Model) names() []string { return slices.Sorted(maps.Keys(m.types)) }

// isNamed reports whether a schema becomes a Go type of its own.
func isNamed(n document.Node) bool { return isStruct(n) || len(values(n)) > 0 }

func isStruct(n document.Node) bool { return n.At("type").Text() == "object" && n.Has("properties") }

// isFree reports whether a schema accepts any object.
func isFree(n document.Node) bool {
	return n.At("type").Text() == "object" && !n.Has("properties") && !n.Has("additionalProperties")
}

// values of an enum or of a string whose list of values may grow, sorted.
func values(n document.Node) []string {
	all := append(n.At("enum").Texts(), n.At(catalog.KnownValuesKeyword).Texts()...)
	slices.Sort(all)
	return all
}

// typeName returns the Go type of a schema that stands as a property, or as the items of one, named
// key.
func typeName(key string, n document.Node) (string, error) {
	target, err := n.Resolve()
	if err != nil {
		return "", fmt.Errorf("type of %s: %w", key, err)
	}
	if isNamed(target) {
		if reference := n.At("$ref").Text(); reference != "" {
			return path.Base(reference), nil
		}
		return exported(key), nil
	}
	switch kind := target.At("type").Text(); kind {
	case "string":
		if target.At("format").Text() == formatDateTime {
			return "time.Time", nil
		}
		return "string", nil
	case "integer":
		return "int", nil
	case "boolean":
		return "bool", nil
	case "array":
		item, err := typeName(key, target.At("items"))
		return "[]" + item, err
	case "object":
		if target.Has(catalog.EncodedKeyword) {
			return "json.RawMessage", nil
		}
		if isFree(target) {
			return "map[string]any", nil
		}
		value, err := typeName(key, target.At("additionalProperties"))
		return "map[string]" + value, err
	default:
		return "", fmt.Errorf("%s: %s: type %q has no Go type", n.File(), key, kind)
	}
}

const formatDateTime = "date-time"

// field of a struct.
type field struct {
	key         string // JSON name
	name        string // Go name
	goType      string // without the pointer
	description string
	schema      document.Node // resolved
	required    bool
	pointer     bool // absent differs from zero
}

// fields of a struct in the order of their JSON names.
func fields(n document.Node) ([]field, error) {
	properties, required := n.At("properties"), n.At("required").Texts()
	all := make([]field, 0, len(properties.Keys()))
	for _, key := range properties.Keys() {
		property := properties.At(key)
		target, err := property.Resolve()
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", n.File(), key, err)
		}
		goType, err := typeName(key, property)
		if err != nil {
			return nil, err
		}
		f := field{
			key: key, name: exported(key), goType: goType, schema: target,
			description: property.At("description").Text(), required: slices.Contains(required, key),
		}
		container := strings.HasPrefix(goType, "[]") || strings.HasPrefix(goType, "map[")
		f.pointer = !f.required && !container && !property.Has("default")
		all = append(all, f)
	}
	return all, nil
}

// exported returns the Go name of a snake_case name or of an enum's value.
func exported(text string) string {
	var b strings.Builder
	for word := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == '_' || r == '-' }) {
		switch word {
		case "id", "uid":
			b.WriteString(strings.ToUpper(word))
		default:
			b.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	return b.String()
}

// number returns an integer keyword as Go writes it, or the alternative if the keyword is absent.
func number(n document.Node, key, alternative string) string {
	if value, ok := n.At(key).Value.(json.Number); ok {
		return value.String()
	}
	return alternative
}
