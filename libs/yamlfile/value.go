package yamlfile

import (
	"fmt"
	"unicode/utf8"
)

// Kind of a value.
type Kind int

// The kinds.
const (
	Scalar Kind = iota
	List
	Map
)

// Value is a node of the document without aliases and merge keys. It is immutable, so aliases share it.
type Value struct {
	Position

	Kind    Kind
	Tag     string // of a scalar, such as !!str
	Text    string // of a scalar
	Items   []*Value
	Entries []Entry
	Weight  int // nodes plus bytes of text of the value and all that it contains, at most 1<<40
	height  int // levels below
}

// Entry is an entry of a mapping.
type Entry struct {
	Position

	Key   string
	Value *Value
}

const maxWeight = 1 << 40

// Get returns the value of a key; nil if it is absent or null.
func (v *Value) Get(key string) *Value {
	for _, e := range v.Entries {
		if e.Key == key && !e.Value.Null() {
			return e.Value
		}
	}
	return nil
}

// Null reports whether the value is null.
func (v *Value) Null() bool { return v.Kind == Scalar && v.Tag == "!!null" }

// String describes the value for a message.
func (v *Value) String() string {
	switch v.Kind {
	case List:
		return "a list"
	case Map:
		return "a mapping"
	default:
		if v.Null() {
			return "nothing"
		}
		return Quote(v.Text)
	}
}

// Quote quotes text for a message and shortens it.
func Quote(text string) string {
	const limit = 60
	if utf8.RuneCountInString(text) > limit {
		text = string([]rune(text)[:limit]) + "…"
	}
	return fmt.Sprintf("%q", text)
}

// weigh sets weight and height.
func (v *Value) weigh() {
	v.Weight, v.height = 1+len(v.Text), 0
	for _, item := range v.Items {
		v.Weight = min(v.Weight+item.Weight, maxWeight)
		v.height = max(v.height, item.height+1)
	}
	for _, e := range v.Entries {
		v.Weight = min(v.Weight+1+len(e.Key)+e.Value.Weight, maxWeight)
		v.height = max(v.height, e.Value.height+1)
	}
}

// Merge returns base with the entries of over; mappings are merged, everything else is replaced.
func Merge(base, over *Value) *Value {
	if base.Kind != Map || over.Kind != Map {
		return over
	}
	out := &Value{Position: over.Position, Kind: Map, Entries: make([]Entry, 0, len(base.Entries)+len(over.Entries))}
	index := make(map[string]int, len(base.Entries))
	for _, e := range base.Entries {
		index[e.Key] = len(out.Entries)
		out.Entries = append(out.Entries, e)
	}
	for _, e := range over.Entries {
		i, ok := index[e.Key]
		if !ok {
			out.Entries = append(out.Entries, e)
			continue
		}
		out.Entries[i] = Entry{Position: e.Position, Key: e.Key, Value: Merge(out.Entries[i].Value, e.Value)}
	}
	out.weigh()
	return out
}
