package trace

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
)

// star replaces each byte of a masked value.
const star = '*'

// Held are bytes that were received and are not stored: the first Length bytes of a masked value.
type Held struct {
	// Pattern is the number of the value in the [Mask]; it has no meaning if Length is 0.
	Pattern int `json:"pattern"`
	Length  int `json:"length"`
	// Covered is how many of the bytes, from the first, belong to a masked value that began before them.
	Covered int `json:"covered"`
}

// Mask finds masked values. It is immutable and safe for concurrent use. Two masks of the same values, in the same
// order, are equal: a Held of one is valid for the other.
type Mask struct{ patterns []pattern }

// pattern is a masked value in one encoding.
type pattern struct {
	text []byte
	// failure[i] is the length of the longest proper prefix of text[:i+1] that is also its suffix.
	failure []int
}

// minEncoded is the length from which an encoding of a value is masked: shorter ones occur by chance.
const minEncoded = 8

// NewMask returns a mask for the values in any of these encodings: as they are, with CRLF for LF, as a JSON string,
// percent-encoded, and in Base64 (both alphabets) alone or within a longer text. Empty values are ignored.
func NewMask(values []string) *Mask {
	m := &Mask{}
	seen := map[string]bool{"": true}
	add := func(text string) {
		if !seen[text] {
			seen[text] = true
			m.patterns = append(m.patterns, newPattern(text))
		}
	}
	for _, v := range values {
		add(v)
		for _, text := range encodings(v) {
			if len(text) >= minEncoded {
				add(text)
			}
		}
	}
	return m
}

func encodings(value string) []string {
	out := []string{
		strings.ReplaceAll(strings.ReplaceAll(value, "\r\n", "\n"), "\n", "\r\n"),
		url.QueryEscape(value), url.PathEscape(value),
	}
	if quoted, err := json.Marshal(value); err == nil {
		out = append(out, string(quoted[1:len(quoted)-1]))
	}
	// In a longer text the value starts at byte 0, 1 or 2 of a group of three. The first and last characters of the
	// Base64 also encode what surrounds it.
	for shift := range 3 {
		padded := make([]byte, shift, shift+len(value))
		padded = append(padded, value...)
		for _, alphabet := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			text := alphabet.EncodeToString(padded)
			first := (shift*8 + 5) / 6
			last := len(padded) * 8 / 6
			if first < last {
				out = append(out, text[first:last])
			}
		}
	}
	return out
}

func newPattern(text string) pattern {
	p := pattern{text: []byte(text), failure: make([]int, len(text))}
	for i, k := 1, 0; i < len(text); i++ {
		for k > 0 && text[i] != text[k] {
			k = p.failure[k-1]
		}
		if text[i] == text[k] {
			k++
		}
		p.failure[i] = k
	}
	return p
}

// Masks reports whether there is anything to mask.
func (m *Mask) Masks() bool { return len(m.patterns) > 0 }

// held returns a copy of the held bytes; nil if h is not of this mask.
func (m *Mask) held(h Held) ([]byte, bool) {
	if h.Length == 0 {
		return nil, true
	}
	if h.Pattern < 0 || h.Pattern >= len(m.patterns) || h.Length < 0 || h.Length >= len(m.patterns[h.Pattern].text) {
		return nil, false
	}
	return slices.Clone(m.patterns[h.Pattern].text[:h.Length]), true
}

// apply masks the held bytes followed by data. It returns what can be stored and what is held now. It returns false if
// h is not of this mask.
func (m *Mask) apply(h Held, data []byte) ([]byte, Held, bool) {
	text, ok := m.held(h)
	if !ok {
		return nil, Held{}, false
	}
	text = append(text, data...)
	original := slices.Clone(text)
	covered := h.Covered
	stars(text[:covered])
	next := Held{}
	for i := range m.patterns {
		if n := m.patterns[i].longestStart(original); n > next.Length {
			next = Held{Pattern: i, Length: n}
		}
	}
	end := len(text) - next.Length
	next.Covered = max(covered-end, 0)
	for i := range m.patterns {
		for from, to := range m.patterns[i].matches(original) {
			stars(text[from:to])
			if from < end {
				next.Covered = max(next.Covered, to-end)
			}
		}
	}
	return text[:end], next, true
}

// flush returns the held bytes at the end of a trace. They are not a whole value. If they are more than half of one,
// they are masked.
func (m *Mask) flush(h Held) ([]byte, bool) {
	text, ok := m.held(h)
	if !ok || len(text) == 0 {
		return nil, ok
	}
	if 2*h.Length > len(m.patterns[h.Pattern].text) {
		stars(text)
		return text, true
	}
	original := slices.Clone(text)
	stars(text[:h.Covered])
	for i := range m.patterns {
		for from, to := range m.patterns[i].matches(original) {
			stars(text[from:to])
		}
	}
	return text, true
}

func stars(text []byte) {
	for i := range text {
		text[i] = star
	}
}

// longestStart returns the length of the longest end of text that is a proper start of the pattern.
func (p *pattern) longestStart(text []byte) int {
	text = text[max(len(text)-len(p.text)+1, 0):]
	k := 0
	for _, c := range text {
		for k > 0 && c != p.text[k] {
			k = p.failure[k-1]
		}
		if c == p.text[k] {
			k++
		}
	}
	return k
}

// matches yields the parts of text that the pattern covers, from the first. Overlapping matches that repeat the
// pattern's period are one part, which keeps the work linear in text.
func (p *pattern) matches(text []byte) func(yield func(from, to int) bool) {
	return func(yield func(from, to int) bool) {
		size := len(p.text)
		period := size - p.failure[size-1]
		for at := 0; ; {
			found := bytes.Index(text[at:], p.text)
			if found < 0 {
				return
			}
			from := at + found
			last := from // start of the last match of the part
			for bytes.HasPrefix(text[last+size:], p.text[size-period:]) {
				last += period
			}
			if !yield(from, last+size) {
				return
			}
			at = last + 1
		}
	}
}
