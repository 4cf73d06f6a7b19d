package canonical

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Rule bounds a value beyond its type.
type Rule struct {
	// NotEmpty is for texts.
	NotEmpty bool
	// OneOf are the texts that are allowed; empty allows all.
	OneOf []string
	// Keep hands the text to the caller of Read. It may be at one place only, and not in a list.
	Keep bool
}

// Shape is the JSON of a struct type. It may be used from any number of goroutines.
type Shape struct {
	root  *node
	kept  []string
	slots int
}

type kind int

const (
	text kind = iota
	integer
	boolean
	instant
	object
	list
	texts // by text
)

// node is a value.
type node struct {
	kind   kind
	rule   Rule
	slot   int // of what is kept, -1 for nothing
	fields []field
	items  *node
	// omitted is that the empty value is not written.
	omitted bool
}

type field struct {
	key      string // as written: "name":
	required bool
	value    *node
}

// Of makes the shape of a struct's type. Rules are by path, such as object.name or conditions[].type. Numbers are never negative. It is an error if a rule has no
// place, or the type has something that is not known here.
func Of(example any, rules map[string]Rule) (*Shape, error) {
	s := &Shape{}
	used := make(map[string]bool, len(rules))
	root, err := s.node(reflect.TypeOf(example), "", rules, used)
	if err != nil {
		return nil, fmt.Errorf("shape of %T: %w", example, err)
	}
	for path := range rules {
		if !used[path] {
			return nil, fmt.Errorf("shape of %T: there is no %s", example, path)
		}
	}
	s.root, s.slots = root, len(s.kept)
	return s, nil
}

// Slot is the place of a kept text in what Read fills.
func (s *Shape) Slot(path string) int { return slices.Index(s.kept, path) }

// Slots is how many texts are kept.
func (s *Shape) Slots() int { return s.slots }

func (s *Shape) node(t reflect.Type, path string, rules map[string]Rule, used map[string]bool) (*node, error) {
	rule, ruled := rules[path]
	used[path] = true
	n := &node{rule: rule, slot: -1}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	var err error
	switch {
	case t == reflect.TypeFor[time.Time]():
		n.kind = instant
	case t.Kind() == reflect.String:
		n.kind = text
	case t.Kind() == reflect.Int, t.Kind() == reflect.Int64, t.Kind() == reflect.Int32:
		n.kind = integer
	case t.Kind() == reflect.Bool:
		n.kind = boolean
	case t.Kind() == reflect.Map && t.Key().Kind() == reflect.String && t.Elem().Kind() == reflect.String:
		n.kind = texts
	case t.Kind() == reflect.Slice:
		n.kind = list
		n.items, err = s.node(t.Elem(), path+"[]", rules, used)
	case t.Kind() == reflect.Struct:
		n.kind = object
		n.fields, err = s.fields(t, path, rules, used)
	default:
		err = fmt.Errorf("%s is a %s", path, t)
	}
	if err != nil {
		return nil, err
	}
	if (len(rule.OneOf) > 0 || rule.NotEmpty) && n.kind != text || rule.Keep && (n.kind != text && n.kind != instant || strings.Contains(path, "[]")) {
		return nil, fmt.Errorf("%s cannot keep its rule", path)
	}
	if ruled && rule.Keep {
		n.slot = len(s.kept)
		s.kept = append(s.kept, path)
	}
	return n, nil
}

func (s *Shape) fields(t reflect.Type, path string, rules map[string]Rule, used map[string]bool) ([]field, error) {
	var fields []field
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || name == "-" || f.Anonymous || !f.IsExported() || options != "" && options != "omitempty" || strings.ContainsAny(name, `"\`) {
			return nil, fmt.Errorf("%s.%s is written in a way that is not known", path, f.Name)
		}
		below := name
		if path != "" {
			below = path + "." + name
		}
		value, err := s.node(f.Type, below, rules, used)
		if err != nil {
			return nil, err
		}
		pointer := f.Type.Kind() == reflect.Pointer
		if pointer && options == "" {
			return nil, fmt.Errorf("%s may be null", below)
		}
		// A struct is written also when it is empty, and what a pointer leads to may be empty.
		value.omitted = options != "" && !pointer && value.kind != object && value.kind != instant
		fields = append(fields, field{
			key: `"` + name + `":`, value: value, required: options == "" || !pointer && (value.kind == object || value.kind == instant),
		})
	}
	return fields, nil
}
