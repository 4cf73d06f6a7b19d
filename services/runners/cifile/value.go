package cifile

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

type kind int

const (
	scalarKind kind = iota
	listKind
	mapKind
)

// value is a node of the document without aliases and merge keys. It is immutable, so aliases share it.
type value struct {
	Position

	kind    kind
	tag     string // of a scalar, such as !!str
	text    string // of a scalar
	items   []*value
	entries []entry
	weight  int // of the value and all that it contains, at most maxWeight
	height  int // levels below
}

type entry struct {
	Position

	key   string
	value *value
}

const maxWeight = 1 << 40

// get returns the value of a key; nil if it is absent or null.
func (v *value) get(key string) *value {
	for _, e := range v.entries {
		if e.key == key && !e.value.null() {
			return e.value
		}
	}
	return nil
}

func (v *value) null() bool { return v.kind == scalarKind && v.tag == "!!null" }

func (v *value) String() string {
	switch v.kind {
	case listKind:
		return "a list"
	case mapKind:
		return "a mapping"
	default:
		if v.null() {
			return "nothing"
		}
		return quote(v.text)
	}
}

// quote quotes text for a message and shortens it.
func quote(text string) string {
	const limit = 60
	if utf8.RuneCountInString(text) > limit {
		text = string([]rune(text)[:limit]) + "…"
	}
	return fmt.Sprintf("%q", text)
}

// reader converts nodes of YAML to values.
type reader struct {
	*problems

	limits  Limits
	done    map[*yaml.Node]*value
	reading map[*yaml.Node]bool // anchors whose content is being read
}

// read returns nil if the node cannot be read.
func (r *reader) read(n *yaml.Node, depth int) *value {
	at := Position{Line: n.Line, Column: n.Column}
	if depth > r.limits.Depth {
		r.addf(at, "more than %d nested levels", r.limits.Depth)
		return nil
	}
	if n.Kind == yaml.AliasNode {
		return r.alias(n, depth)
	}
	if v, ok := r.done[n]; ok {
		if depth+v.height > r.limits.Depth {
			r.addf(at, "more than %d nested levels", r.limits.Depth)
			return nil
		}
		return v
	}
	r.reading[n] = true
	defer delete(r.reading, n)
	out := &value{Position: at}
	switch n.Kind {
	case yaml.ScalarNode:
		out.kind, out.tag, out.text = scalarKind, n.ShortTag(), n.Value
		r.checkScalar(out)
	case yaml.SequenceNode:
		out.kind = listKind
		r.checkTag(n, "!!seq", at)
		r.list(out, n, depth)
	case yaml.MappingNode:
		out.kind = mapKind
		r.checkTag(n, "!!map", at)
		r.mapping(out, n, depth)
	default:
		r.addf(at, "unexpected content")
		return nil
	}
	out.weigh()
	r.done[n] = out
	return out
}

func (r *reader) alias(n *yaml.Node, depth int) *value {
	if r.reading[n.Alias] {
		r.addf(Position{Line: n.Line, Column: n.Column}, "the alias *%s is inside of its own anchor", n.Value)
		return nil
	}
	return r.read(n.Alias, depth)
}

func (r *reader) checkScalar(v *value) {
	switch v.tag {
	case "!!str", "!!int", "!!float", "!!bool", "!!null", "!!timestamp", "!!binary":
	default:
		r.unknownTag(v.tag, v.Position)
	}
	if strings.IndexByte(v.text, 0) >= 0 {
		r.addf(v.Position, "the text has a null byte")
	}
}

func (r *reader) checkTag(n *yaml.Node, want string, at Position) {
	if tag := n.ShortTag(); tag != want {
		r.unknownTag(tag, at)
	}
}

func (r *reader) unknownTag(tag string, at Position) {
	if tag == "!reference" {
		r.addf(at, "!reference is not supported: use extends or a YAML anchor")
		return
	}
	r.addf(at, "the tag %s is not supported: remove it", tag)
}

func (r *reader) list(out *value, n *yaml.Node, depth int) {
	for _, item := range n.Content {
		if v := r.read(item, depth+1); v != nil {
			out.items = append(out.items, v)
		}
	}
}

func (r *reader) mapping(out *value, n *yaml.Node, depth int) {
	var merged []*value
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, content := n.Content[i], n.Content[i+1]
		at := Position{Line: key.Line, Column: key.Column}
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		if key.Kind != yaml.ScalarNode {
			r.addf(at, "a key must be a text")
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
			r.addf(at, "the key %s is already in line %d", quote(key.Value), first)
			continue
		}
		lines[key.Value] = at.Line
		out.entries = append(out.entries, entry{Position: at, key: key.Value, value: v})
	}
	for _, source := range merged { // what comes first wins
		for _, e := range source.entries {
			if _, ok := lines[e.key]; !ok {
				lines[e.key] = e.Line
				out.entries = append(out.entries, e)
			}
		}
	}
}

// mergeSources returns the mappings that a merge key names.
func (r *reader) mergeSources(v *value, at Position) []*value {
	sources := []*value{v}
	if v.kind == listKind {
		sources = v.items
	}
	for _, s := range sources {
		if s.kind != mapKind {
			r.addf(at, "<< needs a mapping or a list of mappings, not %s", s)
			return nil
		}
	}
	return sources
}

// weigh sets weight and height.
func (v *value) weigh() {
	v.weight, v.height = 1+len(v.text), 0
	for _, item := range v.items {
		v.weight = min(v.weight+item.weight, maxWeight)
		v.height = max(v.height, item.height+1)
	}
	for _, e := range v.entries {
		v.weight = min(v.weight+1+len(e.key)+e.value.weight, maxWeight)
		v.height = max(v.height, e.value.height+1)
	}
}

// merge returns base with the entries of over; mappings are merged, everything else is replaced.
func merge(base, over *value) *value {
	if base.kind != mapKind || over.kind != mapKind {
		return over
	}
	out := &value{Position: over.Position, kind: mapKind, entries: make([]entry, 0, len(base.entries)+len(over.entries))}
	index := make(map[string]int, len(base.entries))
	for _, e := range base.entries {
		index[e.key] = len(out.entries)
		out.entries = append(out.entries, e)
	}
	for _, e := range over.entries {
		i, ok := index[e.key]
		if !ok {
			out.entries = append(out.entries, e)
			continue
		}
		out.entries[i] = entry{Position: e.Position, key: e.key, value: merge(out.entries[i].value, e.value)}
	}
	out.weigh()
	return out
}
