package payload

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// fields are the members of a JSON object. A member with the value null is absent.
type fields map[string]jsontext.Value

// single returns the members of the only object in the array that the document is.
func single(document []byte) (fields, error) {
	decoder := jsontext.NewDecoder(bytes.NewReader(document))
	value, err := decoder.ReadValue()
	if err != nil {
		return nil, notJSON(err)
	}
	value = value.Clone()
	if _, err := decoder.ReadValue(); !errors.Is(err, io.EOF) {
		return nil, wrong(CodeNotJSON, "there is more than one JSON value: send one array")
	}
	if value.Kind() != jsontext.KindBeginArray {
		return nil, wrong(CodeNotArray, "the document must be an array of one job, not %s", kind(value))
	}
	items := elements(value)
	switch len(items) {
	case 0:
		return nil, wrong(CodeNoJob, "the array is empty: it must have one job")
	case 1:
		return object("the item of the array", items[0])
	default:
		return nil, wrong(CodeSeveralJobs, "the array has %d items: it must have one job", len(items))
	}
}

func notJSON(err error) error {
	if errors.Is(err, io.EOF) {
		return wrong(CodeNotJSON, "the document is empty: it must be an array of one job")
	}
	return wrong(CodeNotJSON, "the document is not valid JSON: %v", err)
}

// elements returns the items of a valid array.
func elements(array jsontext.Value) []jsontext.Value {
	var out []jsontext.Value
	decoder := jsontext.NewDecoder(bytes.NewReader(array))
	if _, err := decoder.ReadToken(); err != nil {
		return nil
	}
	for decoder.PeekKind() != jsontext.KindEndArray {
		value, err := decoder.ReadValue()
		if err != nil {
			return out
		}
		out = append(out, value.Clone())
	}
	return out
}

// object returns the members of a valid value that must be an object.
func object(what string, value jsontext.Value) (fields, error) {
	if value.Kind() != jsontext.KindBeginObject {
		return nil, wrong(CodeWrongType, "%s must be an object, not %s", what, kind(value))
	}
	out := fields{}
	decoder := jsontext.NewDecoder(bytes.NewReader(value))
	if _, err := decoder.ReadToken(); err != nil {
		return nil, notJSON(err)
	}
	for decoder.PeekKind() != jsontext.KindEndObject {
		name, err := decoder.ReadToken()
		if err != nil {
			return nil, notJSON(err)
		}
		key := name.String()
		member, err := decoder.ReadValue()
		if err != nil {
			return nil, notJSON(err)
		}
		if member.Kind() != jsontext.KindNull {
			out[key] = member.Clone()
		}
	}
	return out, nil
}

// id returns the id of the job.
func (f fields) id() (int64, error) {
	raw, ok := f["id"]
	if !ok {
		return 0, wrong(CodeMissing, "id is missing: it must be the id of the job")
	}
	if raw.Kind() != jsontext.KindNumber {
		return 0, wrong(CodeWrongType, "id must be a number, not %s", kind(raw))
	}
	id, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		return 0, wrong(CodeWrongType, "id must be a whole number, not %s", shorten(string(raw)))
	}
	return id, nil
}

// texts returns a list of texts; nil if it is absent.
func (f fields) texts(key, what string, most int) ([]string, error) {
	raw, ok := f[key]
	if !ok {
		return nil, nil
	}
	if raw.Kind() != jsontext.KindBeginArray {
		return nil, wrong(CodeWrongType, "%s must be an array of texts, not %s", what, kind(raw))
	}
	items := elements(raw)
	if len(items) > most {
		return nil, wrong(CodeTooMany, "%s has %d items: at most %d are allowed", what, len(items), most)
	}
	out := make([]string, len(items))
	for i, item := range items {
		if item.Kind() != jsontext.KindString {
			return nil, wrong(CodeWrongType, "item %d of %s must be a text, not %s", i+1, what, kind(item))
		}
		out[i] = text(item)
	}
	return out, nil
}

// tags returns a list of tags without repetitions, in their order.
func (f fields) tags(key, what string) ([]string, error) {
	list, err := f.texts(key, what, MaxTags)
	if err != nil {
		return nil, err
	}
	for i, tag := range list {
		if err := CheckTag(tag); err != nil {
			return nil, wrong(CodeTag, "item %d of %s: %v", i+1, what, err)
		}
	}
	return distinct(list), nil
}

// CheckTag returns an error about a tag that no runner can have.
func CheckTag(tag string) error {
	switch {
	case tag == "":
		return errors.New("a tag must not be empty")
	case utf8.RuneCountInString(tag) > MaxTagCharacters:
		return fmt.Errorf("a tag has at most %d characters, not %d", MaxTagCharacters, utf8.RuneCountInString(tag))
	case containsControl(tag):
		return fmt.Errorf("the tag %s has a control character", shorten(tag))
	default:
		return nil
	}
}

func containsControl(s string) bool {
	for _, r := range s {
		if unicode.IsControl(r) {
			return true
		}
	}
	return false
}

func distinct[T comparable](list []T) []T {
	seen := make(map[T]bool, len(list))
	var out []T
	for _, item := range list {
		if !seen[item] {
			seen[item] = true
			out = append(out, item)
		}
	}
	return out
}

// text returns the content of a valid JSON string.
func text(value jsontext.Value) string {
	out, err := jsontext.AppendUnquote(nil, value)
	if err != nil { // the decoder has checked it
		panic(err)
	}
	return string(out)
}

// kind describes a value for a message.
func kind(value jsontext.Value) string {
	switch value.Kind() {
	case jsontext.KindNull:
		return "null"
	case jsontext.KindTrue, jsontext.KindFalse:
		return "a boolean"
	case jsontext.KindString:
		return "a text"
	case jsontext.KindNumber:
		return "a number"
	case jsontext.KindBeginArray:
		return "an array"
	default:
		return "an object"
	}
}

// shorten quotes text for a message.
func shorten(s string) string {
	const most = 60
	if utf8.RuneCountInString(s) > most {
		s = string([]rune(s)[:most]) + "…"
	}
	return strconv.Quote(s)
}
