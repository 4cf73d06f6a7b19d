package gotypes

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"lockstep.internal/tools/generate/catalog"
	"lockstep.internal/tools/generate/document"
)

// maxFields is how many fields a decoder can track in its bit set.
const maxFields = 64

// decoders renders the decode methods.
type decoders struct {
	out      bytes.Buffer
	patterns []string
}

// Decoders returns the source that decodes and validates the data of every event type in one pass.
func (m Model) Decoders() ([]byte, error) {
	var d decoders
	for _, name := range m.names() {
		n := m.types[name]
		if !isStruct(n) {
			d.values(name, n)
			continue
		}
		if err := d.structure(name, n); err != nil {
			return nil, err
		}
	}
	for _, e := range m.catalog.Events {
		d.printf("\nfunc (*%s) eventType() string { return Type%s }\n", e.Title, e.Title)
	}
	d.printf("\n// decoded decodes the data of an event type that is known by name.\n")
	d.printf("func decoded(eventType string, data []byte) (any, error) {\n\tswitch eventType {\n")
	for _, e := range m.catalog.Events {
		d.printf("\tcase Type%s:\n\t\treturn untyped(Decode[%s](data))\n", e.Title, e.Title)
	}
	d.printf("\tdefault:\n\t\treturn nil, unknownType(eventType)\n\t}\n}\n")

	var head bytes.Buffer
	head.WriteString(header + "import (\n\t\"math\"\n\t\"regexp\"\n\t\"time\"\n)\n")
	head.WriteString("\n// Patterns of the schemas.\nvar (\n")
	for i, pattern := range d.patterns {
		fmt.Fprintf(&head, "\tpattern%d = regexp.MustCompile(%q)\n", i+1, pattern)
	}
	head.WriteString(")\n")
	return formatted(append(head.Bytes(), d.out.Bytes()...))
}

func (d *decoders) printf(format string, args ...any) { fmt.Fprintf(&d.out, format, args...) }

// values renders the decoder of a string type.
func (d *decoders) values(name string, n document.Node) {
	quoted := make([]string, 0, len(values(n)))
	for _, value := range values(n) {
		quoted = append(quoted, fmt.Sprintf("%q", value))
	}
	list := strings.Join(quoted, ", ")
	d.printf("\nfunc (v *%s) decode(r *reader) {\n", name)
	if n.Has(catalog.KnownValuesKeyword) {
		d.printf("\t*v = %s(r.knownText(%s, %s))\n}\n", name, d.textRule(n), list)
	} else {
		d.printf("\t*v = %s(r.enum(%s))\n}\n", name, list)
	}
}

// structure renders the decoder of an object.
func (d *decoders) structure(name string, n document.Node) error {
	all, err := fields(n)
	if err != nil {
		return err
	}
	if len(all) > maxFields {
		return fmt.Errorf("%s: %s has %d fields: at most %d are supported", n.File(), name, len(all), maxFields)
	}
	var required []string
	d.printf("\nfunc (v *%s) decode(r *reader) {\n", name)
	slices.SortStableFunc(all, func(a, b field) int { return boolToInt(b.required) - boolToInt(a.required) })
	for _, f := range all {
		if f.required {
			required = append(required, fmt.Sprintf("%q", f.key))
		}
	}
	if len(required) > 0 {
		d.printf("\tvar present uint64\n")
	}
	d.printf("\tif !r.beginObject() {\n\t\treturn\n\t}\n\tfor r.nextName() {\n\t\tswitch string(r.name) {\n")
	for i, f := range all {
		d.printf("\t\tcase %q:\n", f.key)
		if f.required {
			d.printf("\t\t\tpresent |= 1 << %d\n", i)
		}
		if err := d.field(f); err != nil {
			return err
		}
	}
	d.printf("\t\tdefault:\n\t\t\tr.skip()\n\t\t}\n\t}\n")
	if len(required) > 0 {
		d.printf("\tr.endObject(present, %s)\n", strings.Join(required, ", "))
	} else {
		d.printf("\tr.endObject(0)\n")
	}
	d.printf("}\n")
	return nil
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (d *decoders) field(f field) error {
	target := "v." + f.name
	if f.pointer {
		d.printf("\t\t\t%s = new(%s)\n", target, f.goType)
		if !isNamed(f.schema) {
			target = "*" + target
		}
	}
	return d.assign(target, f.goType, f.schema)
}

// assign renders the statement that decodes a value of a schema into a target.
func (d *decoders) assign(target, goType string, n document.Node) error {
	if isNamed(n) {
		d.printf("%s.decode(r)\n", target)
		return nil
	}
	switch n.At("type").Text() {
	case "string":
		if n.Has("format") {
			format, constrained := n.At("format").Text(), n.Has("pattern") || n.Has("minLength") || n.Has("maxLength")
			if format != formatDateTime || constrained {
				return fmt.Errorf("%s: format %q: only date-time without further constraints is supported", n.File(), format)
			}
			d.printf("%s = r.time()\n", target)
			return nil
		}
		d.printf("%s = r.text(%s)\n", target, d.textRule(n))
	case "integer":
		d.printf("%s = r.integer(integerRule{%s, %s})\n",
			target, number(n, "minimum", "math.MinInt"), number(n, "maximum", "math.MaxInt"))
	case "boolean":
		d.printf("%s = r.boolean()\n", target)
	case "array":
		item := strings.TrimPrefix(goType, "[]")
		rule := fmt.Sprintf("lengthRule{%s, %s}", number(n, "minItems", "0"), number(n, "maxItems", "math.MaxInt"))
		d.printf("%s = readArray(r, %s, func(item *%s) {\n", target, rule, item)
		return d.closure(item, n.At("items"))
	case "object":
		if n.Has(catalog.EncodedKeyword) {
			d.printf("%s = r.encoded()\n", target)
			return nil
		}
		if isFree(n) {
			d.printf("%s = r.object()\n", target)
			return nil
		}
		item := strings.TrimPrefix(goType, "map[string]")
		d.printf("%s = readMap(r, func(item *%s) {\n", target, item)
		return d.closure(item, n.At("additionalProperties"))
	}
	return nil
}

// closure renders the body of the function that decodes one item.
func (d *decoders) closure(goType string, n document.Node) error {
	item, err := n.Resolve()
	if err != nil {
		return fmt.Errorf("items: %w", err)
	}
	target := "*item"
	if isNamed(item) {
		target = "item"
	}
	if err := d.assign(target, goType, item); err != nil {
		return err
	}
	d.printf("})\n")
	return nil
}

// textRule renders the constraints of a string.
func (d *decoders) textRule(n document.Node) string {
	var parts []string
	for _, limit := range []struct{ key, field string }{{"minLength", "minLength"}, {"maxLength", "maxLength"}} {
		if value := number(n, limit.key, ""); value != "" {
			parts = append(parts, limit.field+": "+value)
		}
	}
	if pattern := n.At("pattern").Text(); pattern != "" {
		at := slices.Index(d.patterns, pattern)
		if at < 0 {
			at = len(d.patterns)
			d.patterns = append(d.patterns, pattern)
		}
		parts = append(parts, fmt.Sprintf("pattern: pattern%d", at+1))
	}
	return "textRule{" + strings.Join(parts, ", ") + "}"
}
