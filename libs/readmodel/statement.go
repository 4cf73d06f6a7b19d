package readmodel

import (
	"regexp"
	"strings"
)

// Render puts names into the places of a statement, which are words in braces. A place without a name becomes empty.
func Render(statement string, names map[string]string) string {
	return places.ReplaceAllStringFunc(statement, func(place string) string { return names[strings.Trim(place, "{}")] })
}

var places = regexp.MustCompile(`\{[a-z]+\}`)

// SameKey is that a real row l and a row s of its shadow have the same key.
func SameKey(key []string) string {
	return each(key, " and ", func(c string) string { return "l." + c + " = s." + c })
}

// Assignments gives the columns the values of a row: l or s.
func Assignments(columns []string, row string) string {
	return each(columns, ", ", func(c string) string { return c + " = " + row + "." + c })
}

// Distinct is that any of the columns of l and s differ. Of no columns none does.
func Distinct(columns []string) string {
	if len(columns) == 0 {
		return "false"
	}
	of := func(row string) string {
		return "row(" + each(columns, ", ", func(c string) string { return row + "." + c }) + ")"
	}
	return of("l") + " is distinct from " + of("s")
}

func each(columns []string, joined string, one func(column string) string) string {
	parts := make([]string, len(columns))
	for i, c := range columns {
		parts[i] = one(c)
	}
	return strings.Join(parts, joined)
}
