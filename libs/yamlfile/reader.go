package yamlfile

import (
	"strings"

	"go.yaml.in/yaml/v3"
)

// reader converts nodes of YAML to values.
type reader struct {
	*Problems

	format  Format
	done    map[*yaml.Node]*Value
	reading map[*yaml.Node]bool // anchors whose content is being read
}

// read returns nil if the node cannot be read.
func (r *reader) read(n *yaml.Node, depth int) *Value {
	at := Position{Line: n.Line, Column: n.Column}
	if depth > r.format.Depth {
		r.Addf(at, "more than %d nested levels", r.format.Depth)
		return nil
	}
	if n.Kind == yaml.AliasNode {
		return r.alias(n, depth)
	}
	if v, ok := r.done[n]; ok {
		if depth+v.height > r.format.Depth {
			r.Addf(at, "more than %d nested levels", r.format.Depth)
			return nil
		}
		return v
	}
	r.reading[n] = true
	defer delete(r.reading, n)
	out := &Value{Position: at}
	switch n.Kind {
	case yaml.ScalarNode:
		out.Kind, out.Tag, out.Text = Scalar, n.ShortTag(), n.Value
		r.checkScalar(out)
	case yaml.SequenceNode:
		out.Kind = List
		r.checkTag(n, "!!seq", at)
		r.list(out, n, depth)
	case yaml.MappingNode:
		out.Kind = Map
		r.checkTag(n, "!!map", at)
		r.mapping(out, n, depth)
	default:
		r.Addf(at, "unexpected content")
		return nil
	}
	out.weigh()
	r.done[n] = out
	return out
}

func (r *reader) alias(n *yaml.Node, depth int) *Value {
	if r.reading[n.Alias] {
		r.Addf(Position{Line: n.Line, Column: n.Column}, "the alias *%s is inside of its own anchor", n.Value)
		return nil
	}
	return r.read(n.Alias, depth)
}

func (r *reader) checkScalar(v *Value) {
	switch v.Tag {
	case "!!str", "!!int", "!!float", "!!bool", "!!null", "!!timestamp", "!!binary":
	default:
		r.unknownTag(v.Tag, v.Position)
	}
	if strings.IndexByte(v.Text, 0) >= 0 {
		r.Addf(v.Position, "the text has a null byte")
	}
}

func (r *reader) checkTag(n *yaml.Node, want string, at Position) {
	if tag := n.ShortTag(); tag != want {
		r.unknownTag(tag, at)
	}
}

func (r *reader) unknownTag(tag string, at Position) {
	if instead, ok := r.format.Tags[tag]; ok {
		r.Addf(at, "%s is not supported: %s", tag, instead)
		return
	}
	r.Addf(at, "the tag %s is not supported: remove it", tag)
}

func (r *reader) list(out *Value, n *yaml.Node, depth int) {
	for _, item := range n.Content {
		if v := r.read(item, depth+1); v != nil {
			out.Items = append(out.Items, v)
		}
	}
}

func (r *reader) mapping(out *Value, n *yaml.Node, depth int) {
	var merged []*Value
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, content := n.Content[i], n.Content[i+1]
		at := Position{Line: key.Line, Column: key.Column}
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		if key.Kind != yaml.ScalarNode {
			r.Addf(at, "a key must be a text")
			continue
		}
		v := r.read(content, depth+1)
		if v == nil {
			continue
		}
		if key.ShortTag() == "!!merge" {
			merged = append(merged, r.mergeSources(v, at)...)
			continue
		}
		if first, ok := lines[key.Value]; ok {
			r.Addf(at, "the key %s is already in line %d", Quote(key.Value), first)
			continue
		}
		lines[key.Value] = at.Line
		out.Entries = append(out.Entries, Entry{Position: at, Key: key.Value, Value: v})
	}
	for _, source := range merged { // what comes first wins
		for _, e := range source.Entries {
			if _, ok := lines[e.Key]; !ok {
				lines[e.Key] = e.Line
				out.Entries = append(out.Entries, e)
			}
		}
	}
}

// mergeSources returns the mappings that a merge key names.
func (r *reader) mergeSources(v *Value, at Position) []*Value {
	sources := []*Value{v}
	if v.Kind == List {
		sources = v.Items
	}
	for _, s := range sources {
		if s.Kind != Map {
			r.Addf(at, "<< needs a mapping or a list of mappings, not %s", s)
			return nil
		}
	}
	return sources
}
