package observed

import (
	"strings"
	"time"
	"unicode/utf8"

	"lockstep.internal/schemas/gen/events"
)

// reader reads the JSON of observations as watchers write it: without spaces, nulls, repeated or unknown names. Of anything else it says that it has
// not understood it.
type reader struct {
	data []byte
	at   int
	// lost says that what was read is not understood.
	lost bool

	texts     *kept[string]
	maps      *kept[map[string]string]
	templates *kept[*events.PodTemplate]
}

func newReader() *reader {
	return &reader{
		texts: newKept[string](rememberedTexts), maps: newKept[map[string]string](rememberedMaps), templates: newKept[*events.PodTemplate](rememberedTemplates),
	}
}

// begin begins with a document.
func (r *reader) begin(data []byte) { r.data, r.at, r.lost = data, 0, false }

// end says whether the document is over and was understood. It lets go of it.
func (r *reader) end() bool {
	whole := !r.lost && r.at == len(r.data)
	r.data = nil
	return whole
}

// is goes past a character if it is next.
func (r *reader) is(c byte) bool {
	if r.at < len(r.data) && r.data[r.at] == c {
		r.at++
		return true
	}
	return false
}

func (r *reader) must(c byte) {
	if !r.is(c) {
		r.lost = true
	}
}

// object reads the members of an object, giving the name of each to read, which reads its value.
func (r *reader) object(read func(name []byte)) {
	r.must('{')
	if r.is('}') {
		return
	}
	for !r.lost {
		name := r.raw()
		r.must(':')
		if r.lost {
			return
		}
		if read(name); r.is(',') {
			continue
		}
		r.must('}')
		return
	}
}

// array reads the elements of an array.
func (r *reader) array(read func()) {
	r.must('[')
	if r.is(']') {
		return
	}
	for !r.lost {
		if read(); r.is(',') {
			continue
		}
		r.must(']')
		return
	}
}

// raw is a text between quotes, as it stands there. Quotes and backslashes are the only ones that may be escaped in it.
func (r *reader) raw() []byte {
	r.must('"')
	begin, ascii := r.at, true
	for ; r.at < len(r.data); r.at++ {
		switch c := r.data[r.at]; {
		case c == '"':
			raw := r.data[begin:r.at]
			r.at++
			r.lost = r.lost || !ascii && !utf8.Valid(raw)
			return raw
		case c == '\\' && r.at+1 < len(r.data) && (r.data[r.at+1] == '"' || r.data[r.at+1] == '\\'):
			r.at++
		case c == '\\' || c < ' ':
			r.lost = true
			return nil
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	r.lost = true
	return nil
}

func (r *reader) text() string { return r.remembered(r.raw()) }

func (r *reader) remembered(raw []byte) string {
	if len(raw) == 0 {
		return ""
	}
	if len(raw) > longestText {
		return unescaped(string(raw))
	}
	s := r.texts.slot(raw)
	if s.text != string(raw) {
		s.text = string(raw)
		s.value = unescaped(s.text)
	}
	return s.value
}

// unescaped is a raw text as what it stands for.
func unescaped(raw string) string {
	at := strings.IndexByte(raw, '\\')
	if at < 0 {
		return raw
	}
	text := make([]byte, at, len(raw))
	copy(text, raw)
	for ; at < len(raw); at++ {
		if raw[at] == '\\' {
			at++
		}
		text = append(text, raw[at])
	}
	return string(text)
}

func (r *reader) time() time.Time {
	var t time.Time
	if err := t.UnmarshalText(r.raw()); err != nil {
		r.lost = true
	}
	return t
}

func (r *reader) timePointer() *time.Time {
	t := r.time()
	return &t
}

// mostDigits of a number that cannot overflow.
const mostDigits = 18

func (r *reader) number() int {
	negative := r.is('-')
	n, begin := 0, r.at
	for ; r.at < len(r.data) && r.data[r.at] >= '0' && r.data[r.at] <= '9'; r.at++ {
		n = n*10 + int(r.data[r.at]-'0')
	}
	if digits := r.at - begin; digits == 0 || digits > mostDigits || digits > 1 && r.data[begin] == '0' {
		r.lost = true
	}
	if negative {
		return -n
	}
	return n
}

func (r *reader) numberPointer() *int {
	n := r.number()
	return &n
}

func (r *reader) truth() bool {
	for _, word := range [...]string{"true", "false"} {
		if end := r.at + len(word); end <= len(r.data) && string(r.data[r.at:end]) == word {
			r.at = end
			return word == "true"
		}
	}
	r.lost = true
	return false
}

// part is an object without the objects and arrays around it, as it stands there; what is in it may not be understood.
func (r *reader) part() []byte {
	begin, depth := r.at, 0
	for !r.lost {
		if r.at == len(r.data) {
			r.lost = true
			break
		}
		switch r.data[r.at] {
		case '"':
			r.raw()
			continue
		case '{':
			depth++
		case '}':
			depth--
		}
		if r.at++; depth == 0 {
			break
		}
	}
	if r.lost {
		return nil
	}
	return r.data[begin:r.at]
}

// pairs reads an object of texts. One that was read lately is given again.
func (r *reader) pairs() map[string]string {
	begin := r.at
	part := r.part()
	if r.lost {
		return nil
	}
	s := r.maps.slot(part)
	if s.text == string(part) {
		return s.value
	}
	r.at = begin
	pairs := make(map[string]string)
	r.object(func(name []byte) { pairs[r.remembered(name)] = r.text() })
	if !r.lost && len(part) <= longestPart {
		s.text, s.value = string(part), pairs
	}
	return pairs
}
