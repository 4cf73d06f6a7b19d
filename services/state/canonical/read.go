package canonical

import (
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Read tells whether the data is JSON of this shape, and fills kept, which has a place for each [Shape.Slot], with parts of the data. What is kept is empty where
// a value is not there.
func (s *Shape) Read(data string, kept []string) bool {
	clear(kept)
	r := reader{data: data, kept: kept}
	return r.value(s.root) && r.at == len(data)
}

// reader goes through the data once.
type reader struct {
	data string
	at   int
	kept []string
}

func (r *reader) value(n *node) bool {
	switch n.kind {
	case text:
		return r.text(n)
	case integer:
		return r.integer(n)
	case boolean:
		return r.boolean(n)
	case instant:
		return r.instant(n)
	case object:
		return r.object(n)
	case list:
		return r.list(n)
	case texts:
		return r.texts(n)
	default:
		return false
	}
}

// take goes on if this is next.
func (r *reader) take(literal string) bool {
	if !strings.HasPrefix(r.data[r.at:], literal) {
		return false
	}
	r.at += len(literal)
	return true
}

func (r *reader) byte(c byte) bool {
	if r.at >= len(r.data) || r.data[r.at] != c {
		return false
	}
	r.at++
	return true
}

// object has its fields in the order of the struct's.
func (r *reader) object(n *node) bool {
	if !r.byte('{') {
		return false
	}
	first := true
	for i := range n.fields {
		f := &n.fields[i]
		before := r.at
		if !first && !r.byte(',') {
			if f.required {
				return false
			}
			continue
		}
		if !r.take(f.key) {
			if f.required {
				return false
			}
			r.at = before
			continue
		}
		if !r.value(f.value) {
			return false
		}
		first = false
	}
	return r.byte('}')
}

func (r *reader) list(n *node) bool {
	if !r.byte('[') {
		return false
	}
	if r.byte(']') {
		return !n.omitted
	}
	for {
		if !r.value(n.items) {
			return false
		}
		if r.byte(']') {
			return true
		}
		if !r.byte(',') {
			return false
		}
	}
}

// texts are sorted by their keys.
func (r *reader) texts(n *node) bool {
	if !r.byte('{') {
		return false
	}
	if r.byte('}') {
		return !n.omitted
	}
	for last, first := "", true; ; first = false {
		key, plain := r.quoted()
		if !plain || !first && key <= last || !r.byte(':') {
			return false
		}
		if _, ok := r.escaped(); !ok {
			return false
		}
		if r.byte('}') {
			return true
		}
		if !r.byte(',') {
			return false
		}
		last = key
	}
}

func (r *reader) text(n *node) bool {
	if n.slot < 0 && len(n.rule.OneOf) == 0 {
		value, ok := r.escaped()
		return ok && (value != "" || !n.omitted && !n.rule.NotEmpty)
	}
	value, plain := r.quoted()
	if !plain || value == "" && (n.omitted || n.rule.NotEmpty) || len(n.rule.OneOf) > 0 && !slices.Contains(n.rule.OneOf, value) {
		return false
	}
	if n.slot >= 0 {
		r.kept[n.slot] = value
	}
	return true
}

// quoted is a text without escapes.
func (r *reader) quoted() (string, bool) {
	value, ok := r.escaped()
	return value, ok && strings.IndexByte(value, '\\') < 0
}

// escaped is a text as it is written, between its quotes.
func (r *reader) escaped() (string, bool) {
	if !r.byte('"') {
		return "", false
	}
	begin, ascii := r.at, true
	for r.at < len(r.data) {
		switch c := r.data[r.at]; {
		case c == '"':
			value := r.data[begin:r.at]
			r.at++
			return value, ascii || writtenAsIs(value)
		case c == '\\':
			if !r.escape() {
				return "", false
			}
		case c < ' ' || c == '<' || c == '>' || c == '&':
			return "", false // these are always escaped
		default:
			ascii = ascii && c < utf8.RuneSelf
			r.at++
		}
	}
	return "", false
}

// escape is one of those that are usual in texts.
func (r *reader) escape() bool {
	for _, known := range [...]string{`\"`, `\\`, `\n`, `\t`, `\r`, `\u003c`, `\u003e`, `\u0026`} {
		if r.take(known) {
			return true
		}
	}
	return false
}

// writtenAsIs tells whether a text beyond ASCII needs no escapes.
func writtenAsIs(value string) bool {
	return utf8.ValidString(value) && !strings.Contains(value, "\u2028") && !strings.Contains(value, "\u2029")
}

// longestInteger is how many digits any int64 can have without a look at which.
const longestInteger = 18

func (r *reader) integer(n *node) bool {
	begin := r.at
	for r.at < len(r.data) && digit(r.data[r.at]) {
		r.at++
	}
	digits := r.data[begin:r.at]
	if digits == "0" {
		return !n.omitted
	}
	return len(digits) > 0 && len(digits) <= longestInteger && digits[0] != '0'
}

func digit(c byte) bool { return c >= '0' && c <= '9' }

func (r *reader) boolean(n *node) bool {
	return r.take("true") || !n.omitted && r.take("false")
}

// instant is a time in UTC with as many digits after the point as it needs.
func (r *reader) instant(n *node) bool {
	const shortest, longest = len("2006-01-02T15:04:05Z"), len("2006-01-02T15:04:05.000000000Z")
	value, plain := r.quoted()
	if !plain || len(value) < shortest || len(value) > longest || value[len(value)-1] != 'Z' {
		return false
	}
	if len(value) > shortest && (value[shortest-1] != '.' || value[len(value)-2] == '0') {
		return false
	}
	// Parse would also take an hour of one digit.
	if _, err := time.Parse(time.RFC3339, value); err != nil || value[len("2006-01-02T15")] != ':' {
		return false
	}
	if n.slot >= 0 {
		r.kept[n.slot] = value
	}
	return true
}
