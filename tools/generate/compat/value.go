package compat

import (
	"encoding/json"
	"math/big"
	"slices"
	"strings"

	"lockstep.internal/tools/generate/catalog"
	"lockstep.internal/tools/generate/document"
)

// literal returns a value as JSON, or "nothing".
func literal(n document.Node) string {
	if n.Value == nil {
		return "nothing"
	}
	if text := n.Text(); text != "" {
		return text
	}
	raw, err := json.Marshal(n.Value)
	if err != nil {
		return "nothing"
	}
	return string(raw)
}

// values compares the allowed values of a field: enum, const and known values.
func (c *comparison) values(pointer string, old, now document.Node) {
	if before, after := literal(old.At("const")), literal(now.At("const")); before != after {
		c.reportf(pointer, "const %s became %s", before, after)
	}
	hadEnum, hasEnum := old.Has("enum"), now.Has("enum")
	knew, knows := old.Has(catalog.KnownValuesKeyword), now.Has(catalog.KnownValuesKeyword)
	switch {
	case hadEnum && knows && !hasEnum:
		c.reportf(pointer, "a closed enum became one that may grow, for which consumers have no branch")
	case knew && hasEnum && !hadEnum:
		c.reportf(pointer, "known values became a closed enum")
	case hadEnum && !hasEnum:
		c.reportf(pointer, "the enum is gone: any value may come")
	case !hadEnum && hasEnum:
		c.reportf(pointer, "any value became an enum")
	case hadEnum:
		before, after := elements(old.At("enum")), elements(now.At("enum"))
		if gone := without(before, after); len(gone) > 0 {
			c.reportf(pointer, "enum no longer holds %s", strings.Join(gone, ", "))
		}
		if added := without(after, before); len(added) > 0 {
			c.reportf(pointer, "enum also holds %s, for which consumers have no branch", strings.Join(added, ", "))
		}
	}
	if knew && !hasEnum {
		before, after := elements(old.At(catalog.KnownValuesKeyword)), elements(now.At(catalog.KnownValuesKeyword))
		if gone := without(before, after); len(gone) > 0 {
			c.reportf(pointer, "known values no longer hold %s", strings.Join(gone, ", "))
		}
	}
}

func elements(n document.Node) []string {
	array, _ := n.Value.([]any)
	texts := make([]string, 0, len(array))
	for _, value := range array {
		texts = append(texts, literal(document.Node{Value: value}))
	}
	return texts
}

func without(all, some []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(some, s) })
}

// constraints compares the bounds of a value. They may be loosened, not tightened.
func (c *comparison) constraints(pointer string, old, now document.Node) {
	for _, key := range []string{"minLength", "minItems", "minProperties", "minimum", "exclusiveMinimum"} {
		c.bound(pointer, key, old.At(key), now.At(key), func(before, after *big.Rat) bool { return after.Cmp(before) > 0 })
	}
	for _, key := range []string{"maxLength", "maxItems", "maxProperties", "maximum", "exclusiveMaximum"} {
		c.bound(pointer, key, old.At(key), now.At(key), func(before, after *big.Rat) bool { return after.Cmp(before) < 0 })
	}
	// Patterns cannot be compared, so only the removal of one is a loosening.
	for _, key := range []string{"pattern", "multipleOf", "uniqueItems"} {
		before, after := literal(old.At(key)), literal(now.At(key))
		if before != after && after != "nothing" && after != "false" {
			c.reportf(pointer, "%s %s became %s", key, before, after)
		}
	}
}

func (c *comparison) bound(pointer, key string, old, now document.Node, tightened func(before, after *big.Rat) bool) {
	after := number(now)
	if after == nil {
		return
	}
	before := number(old)
	// A length is never below zero, so a minimum of zero is no constraint.
	if before == nil && strings.HasPrefix(key, "min") && key != "minimum" {
		before = new(big.Rat)
	}
	if before == nil || tightened(before, after) {
		c.reportf(pointer, "%s %s became %s", key, literal(old), literal(now))
	}
}

// maxDigits bounds the digits of a bound. Comparing larger exponents would take too long.
const maxDigits = 64

func number(n document.Node) *big.Rat {
	value, ok := n.Value.(json.Number)
	if !ok || len(value) > maxDigits || strings.ContainsAny(value.String(), "eE") {
		return nil
	}
	rat, ok := new(big.Rat).SetString(value.String())
	if !ok {
		return nil
	}
	return rat
}
