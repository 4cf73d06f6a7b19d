package devfile

import (
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// object is a YAML mapping that records which fields were read, so that refuseUnknown can report the others.
type object struct {
	r      *reader
	path   string
	keys   []string
	fields map[string]*yaml.Node
	read   map[string]bool
}

// object returns the mapping of a node. For another kind of node it adds an error and returns an empty object.
func (r *reader) object(path string, n *yaml.Node) object {
	o := object{r: r, path: path, fields: map[string]*yaml.Node{}, read: map[string]bool{}}
	if n.Kind != yaml.MappingNode {
		r.addf(path, "must be an object, not %s", kind(n))
		return o
	}
	for i := 0; i < len(n.Content); i += 2 {
		key := n.Content[i].Value
		o.keys, o.fields[key] = append(o.keys, key), n.Content[i+1]
	}
	return o
}

func (o object) at(field string) string {
	if o.path == "" {
		return field
	}
	return o.path + "." + field
}

func (o object) addf(field, format string, args ...any) { o.r.addf(o.at(field), format, args...) }

func (o object) warnf(field, format string, args ...any) { o.r.warnf(o.at(field), format, args...) }

// warn adds a warning if a field without effect is present and not empty.
func (o object) warn(field, why string) {
	n := o.value(field)
	if n == nil || n.Kind != yaml.ScalarNode && len(n.Content) == 0 {
		return
	}
	o.warnf(field, "%s", why)
}

// value marks a field as read and returns its value; nil if it is missing or null.
func (o object) value(field string) *yaml.Node {
	o.read[field] = true
	if n := o.fields[field]; n != nil && n.ShortTag() != "!!null" {
		return n
	}
	return nil
}

// literal returns a text field without replacing variables.
func (o object) literal(field string) string {
	n := o.value(field)
	if n == nil {
		return ""
	}
	value, ok := text(n)
	if !ok {
		o.addf(field, "must be a string, not %s", kind(n))
	}
	return value
}

// text returns a text field with its variables replaced.
func (o object) text(field string) string { return o.r.expand(o.at(field), o.literal(field)) }

// boolean returns a boolean field. Defaults to value.
func (o object) boolean(field string, value bool) bool {
	n := o.value(field)
	if n == nil {
		return value
	}
	if err := n.Decode(&value); err != nil || n.ShortTag() != "!!bool" {
		o.addf(field, "must be true or false, not %s", kind(n))
	}
	return value
}

// port returns a port number. For a missing or invalid one it adds an error and returns 0.
func (o object) port(field string) int32 {
	n := o.value(field)
	if n == nil {
		o.addf(field, "is missing: give the port number")
		return 0
	}
	var value int32
	if n.ShortTag() != "!!int" || n.Decode(&value) != nil {
		o.addf(field, "must be a port number from 1 to 65535, not %s", kind(n))
	}
	return value
}

// object returns a field that is a mapping. A missing one is empty.
func (o object) object(field string) (object, bool) {
	n := o.value(field)
	if n == nil {
		return object{r: o.r, path: o.at(field), read: map[string]bool{}}, false
	}
	return o.r.object(o.at(field), n), true
}

// items returns the nodes of a list field.
func (o object) items(field string) []*yaml.Node {
	n := o.value(field)
	if n == nil {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		o.addf(field, "must be a list, not %s", kind(n))
		return nil
	}
	return n.Content
}

// objects returns a list field of objects.
func (o object) objects(field string) []object {
	items := o.items(field)
	all := make([]object, 0, len(items))
	for i, item := range items {
		all = append(all, o.r.object(index(o.at(field), i), item))
	}
	return all
}

// texts returns a list field of texts with their variables replaced.
func (o object) texts(field string) []string {
	var texts []string
	for i, item := range o.items(field) {
		at := index(o.at(field), i)
		value, ok := text(item)
		if !ok {
			o.r.addf(at, "must be a string, not %s", kind(item))
		}
		texts = append(texts, o.r.expand(at, value))
	}
	return texts
}

// textMap returns an object field whose values are texts, without replacing variables.
func (o object) textMap(field string) map[string]string {
	inner, _ := o.object(field)
	all := make(map[string]string, len(inner.keys))
	for _, key := range inner.keys {
		value, ok := text(inner.fields[key])
		if !ok {
			inner.addf(key, "must be a string, not %s", kind(inner.fields[key]))
		}
		all[key] = value
	}
	return all
}

// ignore marks fields as read.
func (o object) ignore(fields ...string) {
	for _, field := range fields {
		o.read[field] = true
	}
}

// refuse adds an error if an unsupported field is present and not empty.
func (o object) refuse(field, why string) {
	n := o.value(field)
	if n == nil || n.Kind != yaml.ScalarNode && len(n.Content) == 0 {
		return
	}
	o.addf(field, "%s", why)
}

// refuseUnknown adds an error for every field that was not read.
func (o object) refuseUnknown() {
	for _, key := range o.keys {
		if !o.read[key] {
			o.addf(clip(key), "a devfile has no such field at this path; correct or remove it")
		}
	}
}

// text returns a scalar as it is written. Unquoted numbers are texts, too: people write versions and ports like this.
func text(n *yaml.Node) (string, bool) {
	if n.Kind != yaml.ScalarNode || n.ShortTag() == "!!null" {
		return "", false
	}
	return n.Value, true
}

// kind describes a node in an error.
func kind(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "an object"
	case yaml.SequenceNode:
		return "a list"
	default:
	}
	if n.ShortTag() == "!!null" {
		return "nothing"
	}
	return strconv.Quote(clip(n.Value))
}

const maxShown = 40

func clip(value string) string {
	if len(value) <= maxShown {
		return value
	}
	return strings.ToValidUTF8(value[:maxShown], "") + "…"
}

func index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// present returns the fields that exist in the object.
func (o object) present(fields []string) []string {
	return slices.DeleteFunc(slices.Clone(fields), func(field string) bool {
		_, exists := o.fields[field]
		return !exists
	})
}
