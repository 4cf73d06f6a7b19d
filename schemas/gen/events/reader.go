package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	// maxFaults is how many faults one error lists.
	maxFaults = 10
	// maxShown is how many characters of a value or a name an error repeats: the data may come from
	// anyone.
	maxShown = 64
)

//nolint:gochecknoglobals // A pool is shared by nature.
var readers = sync.Pool{New: func() any { return &reader{decoder: jsontext.NewDecoder(&bytes.Buffer{})} }}

// reader reads one JSON document for the generated decoders. A value that breaks the schema adds a
// fault and reading continues; a syntax error ends it, and every later method returns a zero value.
type reader struct {
	decoder *jsontext.Decoder
	source  bytes.Buffer
	// name of the member that nextName found; valid until the next read.
	name   []byte
	faults []string
	more   int // faults beyond maxFaults
	err    error
}

func (r *reader) reset(data []byte) {
	r.source = *bytes.NewBuffer(data)
	r.decoder.Reset(&r.source)
	r.name, r.faults, r.more, r.err = nil, nil, 0, nil
}

func (r *reader) release() {
	r.reset(nil)
	readers.Put(r)
}

// finish returns the error of the whole document.
func (r *reader) finish() error {
	if r.err == nil {
		_, err := r.decoder.ReadToken()
		if err == nil {
			err = errors.New("a second value follows the first")
		}
		if !errors.Is(err, io.EOF) {
			r.err = err
		}
	}
	if r.err != nil {
		return fmt.Errorf("data is not JSON: %s", shortenTo(r.err.Error(), 4*maxShown))
	}
	if len(r.faults) == 0 {
		return nil
	}
	if r.more > 0 {
		r.faults = append(r.faults, fmt.Sprintf("and %d more", r.more))
	}
	return errors.New(strings.Join(r.faults, "; "))
}

// faultf records a fault of the value that was read last.
func (r *reader) faultf(format string, args ...any) {
	r.faultAtf(string(r.decoder.StackPointer()), format, args...)
}

func (r *reader) faultAtf(pointer, format string, args ...any) {
	if len(r.faults) >= maxFaults {
		r.more++
		return
	}
	tokens := strings.Split(strings.TrimPrefix(pointer, "/"), "/")
	for i, token := range tokens {
		tokens[i] = shorten(token)
	}
	r.faults = append(r.faults, "/"+strings.Join(tokens, "/")+": "+fmt.Sprintf(format, args...))
}

// value reads the next value if it is of a kind. Otherwise it records a fault, skips the value and
// returns nil.
func (r *reader) value(kind jsontext.Kind, want string) []byte {
	if r.err != nil {
		return nil
	}
	if got := r.decoder.PeekKind(); got != kind && got != jsontext.KindInvalid {
		r.mismatch(got, want)
		return nil
	}
	value, err := r.decoder.ReadValue()
	r.err = err
	return value
}

func (r *reader) mismatch(got jsontext.Kind, want string) {
	if r.skip(); r.err == nil {
		r.faultf("is of type %s, must be %s", kindName(got), want)
	}
}

func kindName(kind jsontext.Kind) string {
	switch kind {
	case jsontext.KindNull:
		return "null"
	case jsontext.KindTrue, jsontext.KindFalse:
		return "boolean"
	case jsontext.KindString:
		return "string"
	case jsontext.KindNumber:
		return "number"
	case jsontext.KindBeginObject:
		return "object"
	default:
		return "array"
	}
}

func (r *reader) skip() {
	if r.err == nil {
		r.err = r.decoder.SkipValue()
	}
}

// begin enters an object or an array. It returns false if the value is of another kind.
func (r *reader) begin(kind jsontext.Kind, want string) bool {
	if r.err != nil {
		return false
	}
	if got := r.decoder.PeekKind(); got != kind && got != jsontext.KindInvalid {
		r.mismatch(got, want)
		return false
	}
	_, r.err = r.decoder.ReadToken()
	return r.err == nil
}

func (r *reader) beginObject() bool { return r.begin(jsontext.KindBeginObject, "object") }

// nextName reads the name of the next member. It returns false at the end of the object.
func (r *reader) nextName() bool {
	if r.ends(jsontext.KindEndObject) {
		return false
	}
	var value jsontext.Value
	if value, r.err = r.decoder.ReadValue(); r.err != nil {
		return false
	}
	r.name = r.unquote(value)
	return true
}

// ends reads the end of an object or an array if it is next, and returns true there and after a
// syntax error.
func (r *reader) ends(kind jsontext.Kind) bool {
	if r.err != nil {
		return true
	}
	if r.decoder.PeekKind() != kind {
		return false
	}
	_, r.err = r.decoder.ReadToken()
	return true
}

// endObject records the required members that are missing. Bit i of present stands for required[i].
func (r *reader) endObject(present uint64, required ...string) {
	if r.err != nil {
		return
	}
	for i, name := range required {
		if present&(1<<i) == 0 {
			r.faultAtf(string(r.decoder.StackPointer())+"/"+name, "is missing")
		}
	}
}

// lengthRule bounds the number of an array's items.
type lengthRule struct{ minimum, maximum int }

// readArray reads an array, item by item. An empty array becomes an empty slice, never nil.
func readArray[T any](r *reader, rule lengthRule, item func(*T)) []T {
	if !r.begin(jsontext.KindBeginArray, "array") {
		return nil
	}
	items := []T{}
	for !r.ends(jsontext.KindEndArray) {
		var value T
		item(&value)
		items = append(items, value)
	}
	switch {
	case r.err != nil:
	case len(items) < rule.minimum:
		r.faultf("has %d items, must have at least %d", len(items), rule.minimum)
	case len(items) > rule.maximum:
		r.faultf("has %d items, may have at most %d", len(items), rule.maximum)
	}
	return items
}

// readMap reads an object with any names, value by value. An empty object becomes an empty map,
// never nil.
func readMap[T any](r *reader, item func(*T)) map[string]T {
	if !r.beginObject() {
		return nil
	}
	items := map[string]T{}
	for r.nextName() {
		name := string(r.name)
		var value T
		item(&value)
		items[name] = value
	}
	return items
}

// unquote returns the content of a JSON string. It refers to the document unless the string has
// escapes.
func (r *reader) unquote(quoted []byte) []byte {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return quoted[1 : len(quoted)-1]
	}
	content, err := jsontext.AppendUnquote(nil, quoted)
	r.err = err
	return content
}

// string reads the content of a string, nil if the value is none. It is valid until the next read.
func (r *reader) string() []byte {
	value := r.value(jsontext.KindString, "string")
	if value == nil || r.err != nil {
		return nil
	}
	return r.unquote(value)
}

// textRule bounds a string, in characters. A zero field is no constraint.
type textRule struct {
	minLength, maxLength int
	pattern              *regexp.Regexp
}

func (r *reader) check(content []byte, rule textRule) {
	if content == nil {
		return
	}
	if rule.minLength > 0 || rule.maxLength > 0 {
		switch length := utf8.RuneCount(content); {
		case length == 0 && rule.minLength > 0:
			r.faultf("is empty")
		case length < rule.minLength:
			r.faultf("has %d characters, must have at least %d", length, rule.minLength)
		case rule.maxLength > 0 && length > rule.maxLength:
			r.faultf("has %d characters, may have at most %d", length, rule.maxLength)
		}
	}
	if rule.pattern != nil && !rule.pattern.Match(content) {
		r.faultf("%s does not match %s", show(content), rule.pattern)
	}
}

func (r *reader) text(rule textRule) string {
	content := r.string()
	r.check(content, rule)
	return string(content)
}

// enum reads one of the values.
func (r *reader) enum(values ...string) string {
	content := r.string()
	if content == nil {
		return ""
	}
	for _, value := range values {
		if string(content) == value {
			return value
		}
	}
	r.faultf("%s must be one of %s", show(content), strings.Join(values, ", "))
	return ""
}

// knownText reads a string that is often, but not always, one of the values.
func (r *reader) knownText(rule textRule, values ...string) string {
	content := r.string()
	for _, value := range values {
		if string(content) == value {
			return value
		}
	}
	r.check(content, rule)
	return string(content)
}

// integerRule bounds an integer.
type integerRule struct{ minimum, maximum int }

func (r *reader) integer(rule integerRule) int {
	value := r.value(jsontext.KindNumber, "integer")
	if value == nil || r.err != nil {
		return 0
	}
	number, err := strconv.Atoi(string(value))
	switch {
	case err != nil:
		r.faultf("%s must be an integer of 64 bits, without fraction or exponent", shorten(string(value)))
	case number < rule.minimum:
		r.faultf("%d is less than %d", number, rule.minimum)
	case number > rule.maximum:
		r.faultf("%d is more than %d", number, rule.maximum)
	}
	return number
}

func (r *reader) boolean() bool {
	if r.err != nil {
		return false
	}
	switch kind := r.decoder.PeekKind(); kind {
	case jsontext.KindTrue, jsontext.KindFalse, jsontext.KindInvalid:
		_, r.err = r.decoder.ReadToken()
		return kind == jsontext.KindTrue
	default:
		r.mismatch(kind, "boolean")
		return false
	}
}

// object reads any object. Numbers become float64.
func (r *reader) object() map[string]any {
	value := r.value(jsontext.KindBeginObject, "object")
	if value == nil || r.err != nil {
		return nil
	}
	var object map[string]any
	r.err = json.Unmarshal(value, &object)
	return object
}

// encoded reads an object that the caller decodes.
func (r *reader) encoded() json.RawMessage {
	return bytes.Clone(r.value(jsontext.KindBeginObject, "object"))
}

func (r *reader) time() time.Time {
	content := r.string()
	if content == nil {
		return time.Time{}
	}
	var at time.Time
	if err := at.UnmarshalText(content); err != nil || !isStrictTime(content) {
		r.faultf("%s is not a date-time of RFC 3339", show(content))
	}
	return at
}

// isStrictTime reports whether a time that UnmarshalText accepts is a date-time of RFC 3339. It
// also accepts an hour of one digit, a comma before the fraction, and an offset of 24 hours or 60
// minutes and more.
func isStrictTime(content []byte) bool {
	const hourEnd, secondEnd, offset = len("2006-01-02T15"), len("2006-01-02T15:04:05"), len("07:00")
	if content[hourEnd] != ':' || content[secondEnd] == ',' {
		return false
	}
	if content[len(content)-1] == 'Z' {
		return true
	}
	hours, minutes, _ := bytes.Cut(content[len(content)-offset:], []byte(":"))
	return string(hours) < "24" && string(minutes) < "60"
}

func show(content []byte) string { return strconv.Quote(shorten(string(content))) }

func shorten(text string) string { return shortenTo(text, maxShown) }

func shortenTo(text string, limit int) string {
	if utf8.RuneCountInString(text) <= limit {
		return text
	}
	return string([]rune(text)[:limit]) + "…"
}
