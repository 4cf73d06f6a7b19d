package http1

import (
	"bytes"
	"strings"
)

// Request is the head of a plain request: GET or HEAD, without a body. Its parts belong to what it was read from.
type Request struct {
	// Method is GET or HEAD.
	Method string
	// Path begins with a slash, and means itself: it has no escapes, no two slashes after each other, and no segment that begins with a dot.
	Path []byte
	// Query is what comes after a question mark, as it was sent; Asks says that there is one, though it may be empty.
	Query []byte
	Asks  bool
	Host  []byte
	// Token is the value of Lockstep-Authorization, or of Authorization where there is none of that; Own says that it is the former.
	Token []byte
	Own   bool
	// Fields are all others, in their order, but for Connection. Authorization is among them where the token is another.
	Fields []Field
}

// Read takes the head of a request from the beginning of b, and returns its size. Errors: [ErrShort], [ErrOther].
func (r *Request) Read(b []byte) (size int, err error) {
	*r = Request{Fields: r.Fields[:0]}
	first, lines, size, err := cut(b)
	if first != nil && !r.begin(first) {
		return 0, ErrOther
	}
	if err != nil {
		return 0, err
	}
	var authorization Field
	var small [maxName]byte
	for n := 0; len(lines) > 0; n++ {
		f, rest, plain := next(lines)
		if !plain || n == MaxFields {
			return 0, ErrOther
		}
		lines = rest
		switch name := lower(&small, f.Name); string(name) {
		case "host":
			if r.Host != nil || len(f.Value) == 0 || !hostname.holds(f.Value) {
				return 0, ErrOther
			}
			r.Host = f.Value
		case "connection":
			if !bytes.EqualFold(f.Value, []byte("keep-alive")) {
				return 0, ErrOther
			}
		case "authorization":
			if authorization.Name != nil {
				return 0, ErrOther
			}
			authorization = f
		case "lockstep-authorization":
			if r.Own {
				return 0, ErrOther
			}
			r.Token, r.Own = f.Value, true
		default:
			if special(name) {
				return 0, ErrOther
			}
			r.Fields = append(r.Fields, f)
		}
	}
	switch {
	case r.Host == nil || authorization.Name == nil && !r.Own:
		return 0, ErrOther
	case !r.Own:
		r.Token = authorization.Value
	case authorization.Name != nil:
		r.Fields = append(r.Fields, authorization)
	}
	return size, nil
}

// begin reads the first line.
func (r *Request) begin(line []byte) bool {
	method, rest, _ := bytes.Cut(line, []byte(" "))
	target, version, _ := bytes.Cut(rest, []byte(" "))
	switch string(method) {
	case "GET":
		r.Method = "GET"
	case "HEAD":
		r.Method = "HEAD"
	default:
		return false
	}
	r.Path, r.Query, r.Asks = bytes.Cut(target, []byte("?"))
	return string(version) == "HTTP/1.1" && len(r.Path) > 0 && r.Path[0] == '/' && path.holds(r.Path) && query.holds(r.Query) && escaped(r.Query) &&
		!bytes.Contains(r.Path, []byte("//")) && !bytes.Contains(r.Path, []byte("/."))
}

// escaped says whether each percent sign is followed by two digits.
func escaped(text []byte) bool {
	for {
		at := bytes.IndexByte(text, '%')
		if at < 0 {
			return true
		}
		if len(text) < at+3 || !hex(text[at+1]) || !hex(text[at+2]) {
			return false
		}
		text = text[at+3:]
	}
}

func hex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// special says whether a request with a field of that name is to be looked at by who knows what it means. A name that is too long to be known is empty.
func special(name []byte) bool {
	switch string(name) {
	case "", "content-length", "expect", "forwarded", "http2-settings", "keep-alive", "lockstep-connection", "te", "trailer", "traceparent", "tracestate", "transfer-encoding", "upgrade":
		return true
	}
	for _, prefix := range []string{"impersonate-", "proxy-", "x-forwarded-", "x-remote-"} {
		if strings.HasPrefix(string(name), prefix) {
			return true
		}
	}
	return false
}
