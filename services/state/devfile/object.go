package devfile

import (
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// object is a YAML object whose fields are taken one by one, so that at the end it is known which nobody knew.
type object struct {
	r      *reader
	path   string
	keys   []string
	fields map[string]*yaml.Node
	taken  map[string]bool
}

// object makes one of a node; of anything else it notes a fault and makes an empty one.
func (r *reader) object(path string, n *yaml.Node) object {
	o := object{r: r, path: path, fields: map[string]*yaml.Node{}, taken: map[string]bool{}}
	if n.Kind != yaml.MappingNode {
		r.addf(path, "must be an object of fields, not %s", kind(n))
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

// take is a field's value, or nil where it is missing or null.
func (o object) take(field string) *yaml.Node {
	o.taken[field] = true
	if n := o.fields[field]; n != nil && n.ShortTag() != "!!null" {
		return n
	}
	return nil
}

// name is a text that is taken as it stands.
func (o object) name(field string) string {
	n := o.take(field)
	if n == nil {
		return ""
	}
	value, ok := text(n)
	if !ok {
		o.addf(field, "must be a text, not %s", kind(n))
	}
	return value
}

// text is a text with variables in place.
func (o object) text(field string) string { return o.r.expand(o.at(field), o.name(field)) }

// flag is true or false; by default as given.
func (o object) flag(field string, value bool) bool {
	n := o.take(field)
	if n == nil {
		return value
	}
	if err := n.Decode(&value); err != nil || n.ShortTag() != "!!bool" {
		o.addf(field, "must be true or false, not %s", kind(n))
	}
	return value
}

// port is an integer; 0 where it is missing or none.
func (o object) port(field string) int32 {
	n := o.take(field)
	if n == nil {
		o.addf(field, "is missing: give the number of the port")
		return 0
	}
	var value int32
	if n.ShortTag() != "!!int" || n.Decode(&value) != nil {
		o.addf(field, "must be the number of a port from 1 to 65535, not %s", kind(n))
	}
	return value
}

func (o object) object(field string) (object, bool) {
	n := o.take(field)
	if n == nil {
		return object{}, false
	}
	return o.r.object(o.at(field), n), true
}

// items are a list's.
func (o object) items(field string) []*yaml.Node {
	n := o.take(field)
	if n == nil {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		o.addf(field, "must be a list, not %s", kind(n))
		return nil
	}
	return n.Content
}

// objects are a list's, where each is an object.
func (o object) objects(field string) []object {
	items := o.items(field)
	all := make([]object, 0, len(items))
	for i, item := range items {
		all = append(all, o.r.object(index(o.at(field), i), item))
	}
	return all
}

// words are a list's, where each is a text with variables in place.
func (o object) words(field string) []string {
	var words []string
	for i, item := range o.items(field) {
		at := index(o.at(field), i)
		word, ok := text(item)
		if !ok {
			o.r.addf(at, "must be a text, not %s", kind(item))
		}
		words = append(words, o.r.expand(at, word))
	}
	return words
}

// texts are an object's, where each field is a text that is taken as it stands.
func (o object) texts(field string) map[string]string {
	inner, _ := o.object(field)
	all := make(map[string]string, len(inner.keys))
	for _, key := range inner.keys {
		value, ok := text(inner.fields[key])
		if !ok {
			inner.addf(key, "must be a text, not %s", kind(inner.fields[key]))
		}
		all[key] = value
	}
	return all
}

// ignore takes fields that change nothing.
func (o object) ignore(fields ...string) {
	for _, field := range fields {
		o.taken[field] = true
	}
}

// refuse takes a field that cannot be had; without content it asks for nothing.
func (o object) refuse(field, why string) {
	n := o.take(field)
	if n == nil || n.Kind != yaml.ScalarNode && len(n.Content) == 0 {
		return
	}
	o.addf(field, "%s", why)
}

// rest notes what nobody took.
func (o object) rest() {
	for _, key := range o.keys {
		if !o.taken[key] {
			o.addf(clip(key), "is no field of a devfile 2.2 here; correct or remove it")
		}
	}
}

// text is what a scalar says, as it is written: unquoted numbers are what people write for versions and ports.
func text(n *yaml.Node) (string, bool) {
	if n.Kind != yaml.ScalarNode || n.ShortTag() == "!!null" {
		return "", false
	}
	return n.Value, true
}

// kind names what a node is.
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

// present are those of the fields that are there.
func (o object) present(fields []string) []string {
	return slices.DeleteFunc(slices.Clone(fields), func(field string) bool { _, there := o.fields[field]; return !there })
}
