package yamlfile

import (
	"strconv"
)

// Text returns the text of a scalar that is a text or a number.
func (p *Problems) Text(v *Value, what string) string {
	if v.Kind != Scalar || v.Null() {
		p.Addf(v.Position, "%s must be a text, not %s", what, v)
		return ""
	}
	if v.Text == "" {
		p.Addf(v.Position, "%s must not be empty", what)
	}
	return v.Text
}

// Texts returns the texts of a list.
func (p *Problems) Texts(v *Value, what string) []string {
	if v.Kind != List {
		p.Addf(v.Position, "%s must be a list, not %s", what, v)
		return nil
	}
	out := make([]string, 0, len(v.Items))
	for _, item := range v.Items {
		out = append(out, p.Text(item, "an item of "+what))
	}
	return out
}

// TextOrList returns the texts of a list, or the one text.
func (p *Problems) TextOrList(v *Value, what string) []string {
	if v.Kind == Scalar {
		return []string{p.Text(v, what)}
	}
	return p.Texts(v, what)
}

// Boolean returns a boolean; false after a problem.
func (p *Problems) Boolean(v *Value, what string) bool {
	if v.Kind == Scalar && v.Tag == "!!bool" {
		if out, err := strconv.ParseBool(v.Text); err == nil {
			return out
		}
	}
	p.Addf(v.Position, "%s must be true or false, not %s", what, v)
	return false
}

// Integer returns a whole number in the bounds; least after a problem.
func (p *Problems) Integer(v *Value, what string, least, most int) int {
	if v.Kind == Scalar && v.Tag == "!!int" {
		if out, err := strconv.Atoi(v.Text); err == nil && out >= least && out <= most {
			return out
		}
	}
	p.Addf(v.Position, "%s must be a whole number from %d to %d, not %s", what, least, most, v)
	return least
}

// Integers returns the one integer or those of a list.
func (p *Problems) Integers(v *Value, what string, least, most int) []int {
	if v.Kind != List {
		return []int{p.Integer(v, what, least, most)}
	}
	if len(v.Items) > MaxListed {
		p.Addf(v.Position, "%s has at most %d items", what, MaxListed)
		return nil
	}
	out := make([]int, 0, len(v.Items))
	for _, item := range v.Items {
		out = append(out, p.Integer(item, what, least, most))
	}
	return out
}

// MaxListed bounds lists that nobody writes longer.
const MaxListed = 256

// Mapping reports a problem and returns false if v is no mapping.
func (p *Problems) Mapping(v *Value, what string) bool {
	if v.Kind != Map {
		p.Addf(v.Position, "%s must be a mapping, not %s", what, v)
		return false
	}
	return true
}
