package http1

import (
	"bytes"
	"errors"
)

var (
	// ErrShort is that the head has not come whole. What has come of it may be plain.
	ErrShort = errors.New("the head is not whole")
	// ErrOther is that the head is not plain.
	ErrOther = errors.New("the head is not plain")
)

// MaxFields of a plain head, whatever they are for.
const MaxFields = 64

// Field of a head. Its parts belong to what the head was read from.
type Field struct {
	// Name as it was written.
	Name []byte
	// Value without the spaces around it.
	Value []byte
}

// names are as long as this at the most, where it matters which they are.
const maxName = 32

// lower is a name in small letters, or nothing where it is too long to be one that matters.
func lower(into *[maxName]byte, name []byte) []byte {
	if len(name) > len(into) {
		return nil
	}
	for i, c := range name {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		into[i] = c
	}
	return into[:len(name)]
}

// cut takes a head apart into its first line and what is below it; size is that of the whole head. The first line is told as soon as it is there: who sends something else may wait after it.
func cut(b []byte) (first, below []byte, size int, err error) {
	end := bytes.Index(b, []byte("\r\n\r\n"))
	if end < 0 {
		if bytes.Count(b, []byte("\n")) != bytes.Count(b, []byte("\r\n")) { // others take that for the end of a line, too
			return nil, nil, 0, ErrOther
		}
		if end = bytes.Index(b, []byte("\r\n")); end >= 0 {
			first = b[:end]
		}
		return first, nil, 0, ErrShort
	}
	first, below, _ = bytes.Cut(b[:end+2], []byte("\r\n"))
	return first, below, end + 4, nil
}

// next takes the first field off lines that each end with CR LF.
func next(lines []byte) (f Field, rest []byte, plain bool) {
	colon := 0
	for colon < len(lines) && token[lines[colon]] {
		colon++
	}
	if colon == 0 || colon == len(lines) || lines[colon] != ':' {
		return Field{}, nil, false
	}
	begin := colon + 1
	for begin < len(lines) && (lines[begin] == ' ' || lines[begin] == '\t') {
		begin++
	}
	end := begin
	for end < len(lines) && printable(lines[end]) {
		end++
	}
	if end+1 >= len(lines) || lines[end] != '\r' || lines[end+1] != '\n' {
		return Field{}, nil, false
	}
	return Field{Name: lines[:colon], Value: bytes.TrimRight(lines[begin:end], " \t")}, lines[end+2:], true
}

// printable says whether a byte is one of text that everybody reads alike.
func printable(c byte) bool { return ' ' <= c && c < 0x7f || c == '\t' }

// set of bytes.
type set [256]bool

func setOf(more string) (s set) {
	for c := range s {
		s[c] = 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
	}
	for i := range len(more) {
		s[more[i]] = true
	}
	return s
}

func (s *set) holds(text []byte) bool {
	for _, c := range text {
		if !s[c] {
			return false
		}
	}
	return true
}

var (
	// token is what names consist of (RFC 9110, section 5.6.2).
	token = setOf("!#$%&'*+-.^_`|~")
	// hostname, path and query are what plain ones consist of: less than what RFC 3986 allows.
	hostname = setOf("-._:[]")
	path     = setOf("/-._~:@=+,")
	query    = setOf("/-._~:@=+,&?%")
)
