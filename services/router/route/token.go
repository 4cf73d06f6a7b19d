package route

import (
	"bytes"
	"encoding/json"
	"mime"
	"net/http"
	"net/url"
	"strings"

	"lockstep.internal/libs/jobtoken"
	"lockstep.internal/libs/routable"
)

// MaxBody is how much of a body [FromBody] needs at most, in bytes: the largest request with JSON of GitLab runners.
const MaxBody = 32 << 10

const (
	headerRunner  = "Runner-Token"
	headerJob     = "Job-Token"
	headerPrivate = "Private-Token"
	bodyToken     = "token"
	bearer        = "Bearer "
)

// FromHeader returns the token in the headers of a request; empty if there is none. It is final unless it may be that
// of a user, who acts on a runner: then a token in the body or the query comes first, as in the service runners.
func FromHeader(header http.Header) (token string, final bool) {
	for _, name := range []string{headerRunner, headerJob} {
		if token = header.Get(name); token != "" {
			return token, true
		}
	}
	token = header.Get(headerPrivate)
	if token == "" {
		token = fromAuthorization(header.Get("Authorization"))
	}
	// Runners up to 17.10 send their own token and those of jobs as private ones.
	return token, strings.HasPrefix(token, string(routable.Runner)) || jobtoken.Is(token)
}

// fromAuthorization returns a bearer token, or the password of basic authentication, which clients of the container
// registry and of git use.
func fromAuthorization(value string) string {
	if len(value) > len(bearer) && strings.EqualFold(value[:len(bearer)], bearer) {
		return strings.TrimSpace(value[len(bearer):])
	}
	basic := http.Request{Header: http.Header{"Authorization": {value}}}
	_, password, _ := basic.BasicAuth()
	return password
}

// FromQuery returns the parameter token of a query; empty if there is none.
func FromQuery(rawQuery string) string {
	if !strings.Contains(rawQuery, bodyToken) {
		return ""
	}
	values, _ := url.ParseQuery(rawQuery) // the valid pairs of a query with errors
	return values.Get(bodyToken)
}

// HasToken reports whether a body of this media type may have a token: JSON, a form, or a body without a type.
func HasToken(contentType string) bool {
	switch mediaType(contentType) {
	case "application/json", "application/x-www-form-urlencoded", "":
		return true
	default:
		return false
	}
}

// FromBody returns the token in the start of a body, which may be cut after [MaxBody] bytes; empty if there is none.
func FromBody(contentType string, start []byte) string {
	start = start[:min(len(start), MaxBody)]
	if mediaType(contentType) == "application/x-www-form-urlencoded" {
		return FromQuery(string(start))
	}
	return fromJSON(start)
}

func mediaType(contentType string) string {
	media, _, err := mime.ParseMediaType(contentType)
	if err != nil && contentType != "" {
		return "invalid"
	}
	return media
}

// fromJSON returns the member token of an object. What follows it need not be complete.
func fromJSON(start []byte) string {
	decoder := json.NewDecoder(bytes.NewReader(start))
	if delim, err := decoder.Token(); err != nil || delim != json.Delim('{') {
		return ""
	}
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return ""
		}
		if name != bodyToken {
			if !skip(decoder) {
				return ""
			}
			continue
		}
		value, err := decoder.Token()
		if err != nil {
			return ""
		}
		text, _ := value.(string)
		return text
	}
	return ""
}

// skip reads one value, and returns false if it is not complete. It needs no stack for nested values.
func skip(decoder *json.Decoder) bool {
	for depth := 0; ; {
		token, err := decoder.Token()
		if err != nil {
			return false
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		if depth == 0 {
			return true
		}
	}
}
