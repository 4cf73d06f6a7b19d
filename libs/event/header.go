package event

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

const upperHex = "0123456789ABCDEF"

// escapeValue encodes a header value as section 3.1.3.2 of the NATS protocol binding asks: space,
// double quote, percent and everything outside U+0021…U+007E become the percent-encoded bytes of
// their UTF-8 form.
func escapeValue(value string) string {
	plain := true
	for i := 0; i < len(value) && plain; i++ {
		plain = unreserved(value[i])
	}
	if plain {
		return value
	}
	var b strings.Builder
	for i := range len(value) {
		if c := value[i]; unreserved(c) {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteByte(upperHex[c>>4])
			b.WriteByte(upperHex[c&15])
		}
	}
	return b.String()
}

func unreserved(c byte) bool { return c > ' ' && c < 0x7f && c != '"' && c != '%' }

// unescapeValue decodes a header value: a double-quoted string first loses its quotes and
// backslashes, then one round of percent-decoding follows. A truncated or bad escape, and a result
// that is no valid UTF-8, is refused.
func unescapeValue(value string) (string, error) {
	if len(value) >= 2 && value[0] == '"' && value[len(value)-1] == '"' {
		value = unquote(value[1 : len(value)-1])
	}
	if strings.IndexByte(value, '%') < 0 {
		if !utf8.ValidString(value) {
			return "", errors.New("is not valid UTF-8")
		}
		return value, nil
	}
	out := make([]byte, 0, len(value))
	for i := 0; i < len(value); i++ {
		if value[i] != '%' {
			out = append(out, value[i])
			continue
		}
		if i+2 >= len(value) {
			return "", fmt.Errorf("%q ends inside a percent escape", value)
		}
		high, low := hexDigit(value[i+1]), hexDigit(value[i+2])
		if high < 0 || low < 0 {
			return "", fmt.Errorf("%q has the bad percent escape %q", value, value[i:i+3])
		}
		out = append(out, byte(high<<4|low))
		i += 2
	}
	if !utf8.Valid(out) {
		return "", fmt.Errorf("%q decodes to invalid UTF-8", value)
	}
	return string(out), nil
}

func unquote(value string) string {
	if strings.IndexByte(value, '\\') < 0 {
		return value
	}
	var b strings.Builder
	for i := 0; i < len(value); i++ {
		if value[i] == '\\' && i+1 < len(value) {
			i++
		}
		b.WriteByte(value[i])
	}
	return b.String()
}

func hexDigit(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	default:
		return -1
	}
}
