package pipeline

import (
	"strings"

	"lockstep.internal/services/runners/job"
)

// expand replaces references in values by the values of other variables of the list, in as many levels as there are.
// It is needed because runners replace one level only. It leaves for the runner: references to raw and file variables
// and to variables that are not in the list, references in a circle, and $$, which stands for one $.
//
// It changes the list, and returns false if the values have more than limit bytes.
func expand(list []job.Variable, limit int) bool {
	e := &expansion{list: list, places: make(map[string]int, len(list)), states: make([]state, len(list)), left: limit}
	for i, v := range list {
		e.places[v.Key] = i
	}
	for i := range list {
		e.expand(i)
	}
	return e.left >= 0
}

type expansion struct {
	list   []job.Variable
	places map[string]int
	states []state
	left   int // bytes
}

type state byte

const (
	original state = iota
	expanding
	expanded
)

func (e *expansion) expand(i int) {
	if e.states[i] != original || e.left < 0 {
		return
	}
	e.states[i] = expanding
	v := &e.list[i]
	if !v.Raw && strings.Contains(v.Value, "$") {
		v.Value = e.replace(v.Value)
	}
	e.left -= len(v.Value)
	e.states[i] = expanded
}

// replace replaces the references of a text. It stops when the result is too long.
func (e *expansion) replace(text string) string {
	var b strings.Builder
	for b.Len() <= e.left {
		at := strings.IndexByte(text, '$')
		if at < 0 {
			break
		}
		b.WriteString(text[:at])
		text = text[at:]
		name, size := reference(text)
		if value, ok := e.value(name); ok {
			b.WriteString(value)
		} else {
			b.WriteString(text[:size])
		}
		text = text[size:]
	}
	b.WriteString(text)
	return b.String()
}

// value returns the text that replaces a reference; false if the reference stays.
func (e *expansion) value(name string) (string, bool) {
	i, ok := e.places[name]
	if !ok || e.list[i].Raw || e.list[i].File {
		return "", false
	}
	e.expand(i)
	return e.list[i].Value, e.states[i] == expanded
}

// reference returns the name in the reference at the start of a text, and its size. The name is empty if there is none.
func reference(text string) (name string, size int) {
	if strings.HasPrefix(text, "$$") {
		return "", len("$$")
	}
	rest, braces := strings.CutPrefix(text[1:], "{")
	end := 0
	for end < len(rest) && nameByte(rest[end], end) {
		end++
	}
	switch {
	case !braces:
		return rest[:end], 1 + end
	case strings.HasPrefix(rest[end:], "}"):
		return rest[:end], len("${}") + end
	default:
		return "", 1
	}
}

func nameByte(c byte, at int) bool {
	return c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || at > 0 && '0' <= c && c <= '9'
}
