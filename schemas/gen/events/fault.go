package events

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// maxShown characters of a value that an error repeats: the data may come from anyone.
const maxShown = 64

// faults are the leaves of a validation error as sentences, sorted by place.
func faults(invalid *jsonschema.ValidationError, data any) []string {
	var leaves []*jsonschema.ValidationError
	var walk func(e *jsonschema.ValidationError)
	walk = func(e *jsonschema.ValidationError) {
		if len(e.Causes) == 0 {
			leaves = append(leaves, e)
		}
		for _, cause := range e.Causes {
			walk(cause)
		}
	}
	walk(invalid)
	slices.SortStableFunc(leaves, func(a, b *jsonschema.ValidationError) int {
		return slices.CompareFunc(a.InstanceLocation, b.InstanceLocation, cmp.Compare[string])
	})
	sentences := make([]string, 0, len(leaves))
	for _, leaf := range leaves {
		sentences = append(sentences, sentencesOf(leaf, data)...)
	}
	return slices.Compact(sentences)
}

func sentencesOf(leaf *jsonschema.ValidationError, data any) []string {
	at := pointer(leaf.InstanceLocation)
	say := func(format string, args ...any) []string { return []string{at + ": " + fmt.Sprintf(format, args...)} }
	switch k := leaf.ErrorKind.(type) {
	case *kind.Required:
		missing := make([]string, 0, len(k.Missing))
		for _, name := range k.Missing {
			missing = append(missing, pointer(append(slices.Clone(leaf.InstanceLocation), name))+": is missing")
		}
		return missing
	case *kind.Type:
		return say("is of type %s, must be %s", k.Got, strings.Join(k.Want, " or "))
	case *kind.Enum:
		var allowed []string
		for _, value := range k.Want {
			allowed = append(allowed, fmt.Sprint(value))
		}
		return say("%s is none of %s", show(k.Got), strings.Join(allowed, ", "))
	case *kind.Format:
		return say("%s is no %s", show(k.Got), k.Want)
	case *kind.Pattern:
		return say("%s does not match %s", show(k.Got), k.Want)
	case *kind.MinLength:
		if k.Got == 0 {
			return say("is empty")
		}
		return say("has %d characters, must have at least %d", k.Got, k.Want)
	case *kind.MaxLength:
		return say("has %d characters, may have at most %d", k.Got, k.Want)
	case *kind.Minimum:
		return say("%s is less than %s", show(valueAt(data, leaf.InstanceLocation)), k.Want.RatString())
	case *kind.Maximum:
		return say("%s is more than %s", show(valueAt(data, leaf.InstanceLocation)), k.Want.RatString())
	default:
		return say("breaks %s", strings.Join(leaf.ErrorKind.KeywordPath(), "/"))
	}
}

func pointer(location []string) string {
	if len(location) == 0 {
		return "/"
	}
	var b strings.Builder
	for _, token := range location {
		b.WriteByte('/')
		b.WriteString(shorten(strings.ReplaceAll(strings.ReplaceAll(token, "~", "~0"), "/", "~1")))
	}
	return b.String()
}

func valueAt(data any, location []string) any {
	for _, token := range location {
		switch container := data.(type) {
		case map[string]any:
			data = container[token]
		case []any:
			index, err := strconv.Atoi(token)
			if err != nil || index < 0 || index >= len(container) {
				return nil
			}
			data = container[index]
		default:
			return nil
		}
	}
	return data
}

func show(value any) string {
	raw, err := json.Marshal(value)
	if err != nil {
		return shorten(fmt.Sprint(value))
	}
	return shorten(string(raw))
}

func shorten(text string) string {
	if runes := []rune(text); len(runes) > maxShown {
		return string(runes[:maxShown]) + "…"
	}
	return text
}
