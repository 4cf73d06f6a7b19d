package http1

import (
	"bytes"
	"strconv"
)

// Response is the head of a plain answer: a final one whose length is said, or that has no body. Its parts belong to what it was read from.
type Response struct {
	// Status is from 200 to 599.
	Status int
	// Length of the body that follows.
	Length int64
	// Close is that the connection ends with it.
	Close bool
	// Dated is that it says when it was made.
	Dated bool
	// Fields are all but those that are for the connection.
	Fields []Field
}

// maxLength of a body has so many digits.
const maxLength = 15

// Read takes the head of an answer from the beginning of b, and returns its size. bodiless is that it answers HEAD. Errors: [ErrShort], [ErrOther].
func (r *Response) Read(b []byte, bodiless bool) (size int, err error) {
	*r = Response{Fields: r.Fields[:0], Length: -1}
	first, lines, size, err := cut(b)
	if first != nil && !r.begin(first) {
		return 0, ErrOther
	}
	if err != nil {
		return 0, err
	}
	for n := 0; len(lines) > 0; n++ {
		f, rest, plain := next(lines)
		if !plain || n == MaxFields || !r.take(f) {
			return 0, ErrOther
		}
		lines = rest
	}
	switch {
	case bodiless || r.Status == 204 || r.Status == 304:
		r.Length = 0
	case r.Length < 0:
		return 0, ErrOther
	}
	return size, nil
}

// begin reads the first line.
func (r *Response) begin(line []byte) bool {
	rest, is := bytes.CutPrefix(line, []byte("HTTP/1.1 "))
	if !is || len(rest) < 4 || rest[3] != ' ' {
		return false
	}
	for _, c := range rest[:3] {
		if c < '0' || '9' < c {
			return false
		}
		r.Status = 10*r.Status + int(c-'0')
	}
	for _, c := range rest[4:] { // nobody wants to know the reason, but to others a line might end in it
		if !printable(c) {
			return false
		}
	}
	return 200 <= r.Status && r.Status < 600
}

// take one field.
func (r *Response) take(f Field) (plain bool) {
	var small [maxName]byte
	switch string(lower(&small, f.Name)) {
	case "connection":
		switch {
		case bytes.EqualFold(f.Value, []byte("close")):
			r.Close = true
			return true
		default:
			return bytes.EqualFold(f.Value, []byte("keep-alive"))
		}
	case "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization":
		return true
	case "date":
		r.Dated = true
	case "te", "trailer", "transfer-encoding", "upgrade":
		return false
	case "content-length":
		if r.Length >= 0 || len(f.Value) == 0 || len(f.Value) > maxLength {
			return false
		}
		n, err := strconv.ParseUint(string(f.Value), 10, 63)
		if err != nil || r.Status == 204 {
			return false
		}
		r.Length = int64(n)
	}
	r.Fields = append(r.Fields, f)
	return true
}
