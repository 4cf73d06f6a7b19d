package readmodel

import (
	"regexp"
	"strings"
)

// Render replaces the placeholders of a statement, words in braces, by names. An unknown
// placeholder becomes empty.
func Render(statement string, names map[string]string) string {
	return placeholder.ReplaceAllStringFunc(statement, func(p string) string { return names[strings.Trim(p, "{}")] })
}

var placeholder = regexp.MustCompile(`\{[a-z_]+\}`)

// SameKey is the condition that a live row l and a shadow row s have the same key.
func SameKey(key []string) string {
	return joinEach(key, " and ", func(c string) string { return "l." + c + " = s." + c })
}

// Assignments sets the columns to the values of a row, l or s.
func Assignments(columns []string, row string) string {
	return joinEach(columns, ", ", func(c string) string { return c + " = " + row + "." + c })
}

// Distinct is the condition that any of the columns of l and s differ, false without columns.
func Distinct(columns []string) string {
	if len(columns) == 0 {
		return "false"
	}
	of := func(row string) string {
		return "row(" + joinEach(columns, ", ", func(c string) string { return row + "." + c }) + ")"
	}
	return of("l") + " is distinct from " + of("s")
}

func joinEach(columns []string, joined string, one func(column string) string) string {
	parts := make([]string, len(columns))
	for i, c := range columns {
		parts[i] = one(c)
	}
	return strings.Join(parts, joined)
}
