package devfile

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// identity returns the field that identifies the elements of a list; empty if the list is replaced as a whole.
func identity(list string) string {
	switch list {
	case "components", "projects", "starterProjects", "dependentProjects", "env", "endpoints", "volumeMounts":
		return "name"
	case "commands":
		return "id"
	default:
		return ""
	}
}

// merge returns the content of a parent with its overrides, and then that of the child. It changes no input. The
// result has no parent. Elements of lists that the child defines again, and overrides of elements that the parent does
// not have, are errors.
func merge(parent, overrides, child *yaml.Node) (*yaml.Node, error) {
	r := &reader{remaining: maxExpanded}
	// Each must be an object: reading it reports it otherwise.
	for path, n := range map[string]*yaml.Node{"": child, "parent": overrides} {
		r.object(path, n)
	}
	if parent.Kind != yaml.MappingNode {
		r.addf("parent", "is not an object but %s", kind(parent))
	}
	if err := r.err(); err != nil {
		return nil, err
	}
	base := object{r: r}.merged(parent, only(overrides, overridden()...), "parent", overriding)
	base = without(base, "schemaVersion", "metadata", "parent")
	merged := object{r: r}.merged(base, without(child, "parent"), "", adding)
	return merged, r.err()
}

// mergeMode tells what the elements of lists at the top may do.
type mergeMode int

const (
	// overriding: they must exist before.
	overriding mergeMode = iota
	// adding: they must not exist before.
	adding
	// replacing: both; for lists within elements.
	replacing
)

// merged returns an object with the fields of another one, which count more.
func (o object) merged(base, with *yaml.Node, path string, mode mergeMode) *yaml.Node {
	out := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: with.Line}
	for i := 0; i < len(base.Content); i += 2 {
		key, value := base.Content[i], base.Content[i+1]
		if change := field(with, key.Value); change != nil {
			value = o.mergedValue(key.Value, value, change, join(path, key.Value), mode)
		}
		out.Content = append(out.Content, key, value)
	}
	for i := 0; i < len(with.Content); i += 2 {
		key, value := with.Content[i], with.Content[i+1]
		if field(base, key.Value) != nil {
			continue
		}
		if mode == overriding && identity(key.Value) != "" {
			value = o.mergedValue(key.Value, &yaml.Node{Kind: yaml.SequenceNode}, value, join(path, key.Value), mode)
		}
		out.Content = append(out.Content, key, value)
	}
	return out
}

func (o object) mergedValue(name string, base, with *yaml.Node, path string, mode mergeMode) *yaml.Node {
	switch {
	case base.Kind == yaml.MappingNode && with.Kind == yaml.MappingNode:
		return o.merged(base, with, path, lower(mode, name))
	case base.Kind != yaml.SequenceNode || with.Kind != yaml.SequenceNode:
		return with
	case identity(name) != "":
		return o.mergedList(identity(name), base, with, path, mode)
	case mode == adding: // commands of events
		out := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Line: with.Line}
		out.Content = slices.Concat(base.Content, with.Content)
		return out
	default:
		return with
	}
}

// lower returns the mode for the fields of a field.
func lower(mode mergeMode, name string) mergeMode {
	if mode == adding && name == "events" {
		return adding
	}
	return replacing
}

func (o object) mergedList(key string, base, with *yaml.Node, path string, mode mergeMode) *yaml.Node {
	out := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Line: with.Line, Content: slices.Clone(base.Content)}
	for i, element := range with.Content {
		name := identifier(element, key)
		at := slices.IndexFunc(base.Content, func(n *yaml.Node) bool { return name != "" && identifier(n, key) == name })
		switch {
		case at < 0 && mode == overriding:
			o.r.addf(index(path, i), "the parent has no element %s %.80q; add it outside of parent", key, name)
		case at < 0:
			out.Content = append(out.Content, element)
		case mode == adding:
			o.r.addf(index(path, i), "the parent has an element %s %.80q, too; change it in parent", key, name)
		default:
			out.Content[at] = o.merged(base.Content[at], element, index(path, i), replacing)
		}
	}
	return out
}

// identifier returns the name of an element. Ids of commands are not sensitive to case.
func identifier(element *yaml.Node, key string) string {
	value := field(element, key)
	if value == nil || value.Kind != yaml.ScalarNode {
		return ""
	}
	if key == "id" {
		return strings.ToLower(value.Value)
	}
	return value.Value
}

// field returns a field of an object; nil without it.
func field(n *yaml.Node, name string) *yaml.Node {
	if n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return n.Content[i+1]
		}
	}
	return nil
}

// isEmpty reports whether a field has no content.
func isEmpty(n *yaml.Node) bool {
	return n == nil || n.ShortTag() == "!!null" || n.Kind != yaml.ScalarNode && len(n.Content) == 0
}

// only returns an object with some of its fields, and without the others.
func only(n *yaml.Node, names ...string) *yaml.Node {
	return filtered(n, func(name string) bool { return slices.Contains(names, name) })
}

func without(n *yaml.Node, names ...string) *yaml.Node {
	return filtered(n, func(name string) bool { return !slices.Contains(names, name) })
}

func filtered(n *yaml.Node, keep func(name string) bool) *yaml.Node {
	out := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: n.Line}
	for i := 0; i < len(n.Content); i += 2 {
		if keep(n.Content[i].Value) {
			out.Content = append(out.Content, n.Content[i], n.Content[i+1])
		}
	}
	return out
}

func join(path, field string) string {
	if path == "" {
		return field
	}
	return path + "." + field
}
