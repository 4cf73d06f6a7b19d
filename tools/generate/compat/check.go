package compat

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"lockstep.internal/tools/generate/catalog"
	"lockstep.internal/tools/generate/document"
)

// Break is one incompatible change.
type Break struct {
	// Event is the short name of the type, such as observed.pod.v1.
	Event string
	// Pointer to the field, such as /containers/items/name; "/" for the event itself.
	Pointer string
	// What changed, such as "type string became integer".
	What string
}

// String returns the change, its consequence and the alternative.
func (b Break) String() string {
	family, version := cutVersion(b.Event)
	return fmt.Sprintf("%s: %s: %s: consumers of v%d would break; add %s.v%d instead",
		b.Event, b.Pointer, b.What, version, family, version+1)
}

var versionSuffix = regexp.MustCompile(`\.v([0-9]{1,9})$`)

func cutVersion(name string) (string, int) {
	match := versionSuffix.FindStringSubmatch(name)
	if match == nil {
		return name, 1
	}
	version, err := strconv.Atoi(match[1])
	if err != nil {
		return name, 1
	}
	return strings.TrimSuffix(name, match[0]), version
}

// Check compares every released event type with the present schemas and returns the incompatible
// changes, sorted by event.
func Check(released, current document.Set) []Break {
	var breaks []Break
	for _, file := range released.Names() {
		if file == catalog.Common {
			continue
		}
		c := comparison{event: strings.TrimSuffix(file, document.Suffix), within: map[string]bool{}}
		if current.Raw(file) == nil {
			c.reportf("", "the type is gone")
		} else {
			c.subjects(released.Root(file), current.Root(file))
			c.schema("", released.Root(file), current.Root(file))
		}
		breaks = append(breaks, c.breaks...)
	}
	return breaks
}

// Limits of what is compared; an event's schema is far below.
const (
	maxDepth = 64
	maxSteps = 10_000
)

// comparison compares one event.
type comparison struct {
	event  string
	breaks []Break
	// within holds the pairs of references in progress, so that a recursive schema is compared
	// once.
	within map[string]bool
	steps  int
}

func (c *comparison) reportf(pointer, format string, args ...any) {
	if pointer == "" {
		pointer = "/"
	}
	b := Break{Event: c.event, Pointer: pointer, What: fmt.Sprintf(format, args...)}
	if !slices.Contains(c.breaks, b) {
		c.breaks = append(c.breaks, b)
	}
}

// subjects refuses a removed subject, which readers subscribe to. A further one has no readers yet.
func (c *comparison) subjects(old, now document.Node) {
	for _, gone := range without(catalog.Subjects(old), catalog.Subjects(now)) {
		c.reportf("", "subject %s is gone", gone)
	}
}

// schema compares an old schema with the new one.
func (c *comparison) schema(pointer string, old, now document.Node) {
	if c.steps++; c.steps > maxSteps || strings.Count(pointer, "/") > maxDepth {
		c.reportf("", "the schema is too large or too deep to be compared")
		return
	}
	pair := reference(old) + " " + reference(now)
	if old.Has("$ref") && now.Has("$ref") {
		if c.within[pair] {
			return
		}
		c.within[pair] = true
		defer delete(c.within, pair)
	}
	old, errOld := old.Resolve()
	now, errNow := now.Resolve()
	if errOld != nil || errNow != nil {
		c.reportf(pointer, "a reference leads nowhere")
		return
	}
	if !c.types(pointer, old, now) {
		return
	}
	c.values(pointer, old, now)
	c.constraints(pointer, old, now)
	c.fields(pointer, old, now)
	c.children(pointer, old, now)
}

func reference(n document.Node) string { return n.File() + ":" + n.At("$ref").Text() }

// types reports whether the type is unchanged. Otherwise nothing else is compared.
func (c *comparison) types(pointer string, old, now document.Node) bool {
	if before, after := literal(old.At("type")), literal(now.At("type")); before != after {
		c.reportf(pointer, "type %s became %s", before, after)
		return false
	}
	if before, after := literal(old.At("format")), literal(now.At("format")); before != after {
		c.reportf(pointer, "format %s became %s", before, after)
	}
	if before, after := literal(old.At("default")), literal(now.At("default")); before != after {
		c.reportf(pointer, "default %s became %s, so that absence would mean something else", before, after)
	}
	return true
}

// fields compares the fields and which of them are required.
func (c *comparison) fields(pointer string, old, now document.Node) {
	before, after := old.At("properties"), now.At("properties")
	for _, name := range before.Keys() {
		if !after.Has(name) {
			c.reportf(pointer+"/"+name, "the field is gone")
		}
	}
	requiredBefore, requiredNow := old.At("required").Texts(), now.At("required").Texts()
	for _, name := range requiredNow {
		switch {
		case slices.Contains(requiredBefore, name):
		case before.Has(name):
			c.reportf(pointer+"/"+name, "an optional field became required, which retained events may lack")
		default:
			c.reportf(pointer+"/"+name, "a new field is required, which retained events lack")
		}
	}
	for _, name := range requiredBefore {
		if after.Has(name) && !slices.Contains(requiredNow, name) {
			c.reportf(pointer+"/"+name, "a required field became optional, which consumers rely on")
		}
	}
	// A map's values were of one type; a field that is named now must be of that type too.
	if rest := old.At("additionalProperties"); rest.Object() != nil {
		for _, name := range after.Keys() {
			if !before.Has(name) {
				c.schema(pointer+"/"+name, rest, after.At(name))
			}
		}
	}
}

// children compares the schemas of fields, items and map values.
func (c *comparison) children(pointer string, old, now document.Node) {
	before, after := old.At("properties"), now.At("properties")
	for _, name := range before.Keys() {
		if after.Has(name) {
			c.schema(pointer+"/"+name, before.At(name), after.At(name))
		}
	}
	switch hadItems, hasItems := old.Has("items"), now.Has("items"); {
	case hadItems && hasItems:
		c.schema(pointer+"/items", old.At("items"), now.At("items"))
	case hadItems:
		c.reportf(pointer+"/items", "the type of items is gone")
	case hasItems:
		c.reportf(pointer+"/items", "items of any type became items of one type")
	}
	oldRest, nowRest := old.At("additionalProperties"), now.At("additionalProperties")
	switch {
	case oldRest.Object() != nil && nowRest.Object() != nil:
		c.schema(pointer+"/*", oldRest, nowRest)
	case open(old) && nowRest.Object() != nil:
		c.reportf(pointer+"/*", "fields of any type became fields of one type")
	case oldRest.Object() != nil && open(now):
		c.reportf(pointer+"/*", "the type of further fields is gone")
	case !closed(old) && closed(now):
		c.reportf(pointer+"/*", "further fields are refused now")
	}
}

func closed(n document.Node) bool {
	allowed, ok := n.At("additionalProperties").Value.(bool)
	return ok && !allowed
}

func open(n document.Node) bool { return !closed(n) && n.At("additionalProperties").Object() == nil }
