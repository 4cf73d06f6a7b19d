package cifile

import (
	"strconv"
)

// textOf returns the text of a scalar that is a text or a number.
func (d *decoder) textOf(v *value, what string) string {
	if v.kind != scalarKind || v.null() {
		d.addf(v.Position, "%s must be a text, not %s", what, v)
		return ""
	}
	if v.text == "" {
		d.addf(v.Position, "%s must not be empty", what)
	}
	return v.text
}

// texts returns the texts of a list.
func (d *decoder) texts(v *value, what string) []string {
	if v.kind != listKind {
		d.addf(v.Position, "%s must be a list, not %s", what, v)
		return nil
	}
	out := make([]string, 0, len(v.items))
	for _, item := range v.items {
		out = append(out, d.textOf(item, "an item of "+what))
	}
	return out
}

// textOrList returns the texts of a list, or the one text.
func (d *decoder) textOrList(v *value, what string) []string {
	if v.kind == scalarKind {
		return []string{d.textOf(v, what)}
	}
	return d.texts(v, what)
}

func (d *decoder) boolean(v *value, what string) bool {
	if v.kind == scalarKind && v.tag == "!!bool" {
		if out, err := strconv.ParseBool(v.text); err == nil {
			return out
		}
	}
	d.addf(v.Position, "%s must be true or false, not %s", what, v)
	return false
}

func (d *decoder) integer(v *value, what string, least, most int) int {
	if v.kind == scalarKind && v.tag == "!!int" {
		if out, err := strconv.Atoi(v.text); err == nil && out >= least && out <= most {
			return out
		}
	}
	d.addf(v.Position, "%s must be a whole number from %d to %d, not %s", what, least, most, v)
	return least
}

// integers returns the one integer or those of a list.
func (d *decoder) integers(v *value, what string, least, most int) []int {
	if v.kind != listKind {
		return []int{d.integer(v, what, least, most)}
	}
	if len(v.items) > maxListed {
		d.addf(v.Position, "%s has at most %d items", what, maxListed)
		return nil
	}
	out := make([]int, 0, len(v.items))
	for _, item := range v.items {
		out = append(out, d.integer(item, what, least, most))
	}
	return out
}

// maxListed bounds lists that nobody writes longer.
const maxListed = 256

// mapping reports a problem and returns false if v is no mapping.
func (d *decoder) mapping(v *value, what string) bool {
	if v.kind != mapKind {
		d.addf(v.Position, "%s must be a mapping, not %s", what, v)
		return false
	}
	return true
}
