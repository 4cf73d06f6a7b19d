package wire

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"unicode"
	"unicode/utf8"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// Limits of requests.
const (
	// MaxBody of a request with JSON, in bytes.
	MaxBody = 32 << 10
	// MaxToken is the maximum length of a token, in bytes.
	MaxToken = 4 << 10
	// MaxSystemID is the maximum length of a system_id, in bytes.
	MaxSystemID = 64
	// MaxText is the maximum length of other texts, in bytes.
	MaxText = 255
	// MaxDescription of a runner, in bytes.
	MaxDescription = 1 << 10
	// MaxTags of a runner.
	MaxTags = 50
)

// Request is a request with a JSON body.
type Request interface {
	// Validate returns a fault of code invalid_argument that names the field.
	Validate() error
}

// Decode reads the body of r into request and validates it. The body has one JSON value of at most [MaxBody] bytes. A
// larger body is the fault payload_too_large, and the connection is closed after the answer. A body that does not
// arrive in time is the fault deadline_exceeded.
func Decode(w http.ResponseWriter, r *http.Request, request Request) error {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return fault.New(errcode.PayloadTooLarge, "the body has more than %d bytes", MaxBody)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fault.Wrap(err, errcode.DeadlineExceeded, "the body did not arrive in time: send the request again")
	case err != nil:
		return fault.Wrap(err, errcode.InvalidArgument, "the body is not complete: send the request again")
	}
	return Unmarshal(raw, request)
}

// Unmarshal decodes and validates a body.
func Unmarshal(raw []byte, request Request) error {
	if len(raw) > MaxBody {
		return fault.New(errcode.PayloadTooLarge, "the body has more than %d bytes", MaxBody)
	}
	var wrongType *json.UnmarshalTypeError
	err := json.Unmarshal(raw, request)
	switch {
	case errors.As(err, &wrongType) && wrongType.Field != "":
		return invalid(wrongType.Field, "must not be of the JSON type "+jsonType(wrongType.Value))
	case err != nil:
		// The cause is not kept: it may quote a part of a token.
		return fault.New(errcode.InvalidArgument, "the body is not valid JSON: send one object")
	}
	return request.Validate()
}

// jsonType returns the first word of a description such as "number 12", without the value.
func jsonType(description string) string {
	for i, r := range description {
		if r == ' ' {
			return description[:i]
		}
	}
	return description
}

func invalid(field, what string) error {
	return fault.New(errcode.InvalidArgument, "%s: %s", field, what).With("field", field)
}

// checkToken accepts visible ASCII characters.
func checkToken(token string) error {
	if token == "" {
		return invalid("token", "is missing")
	}
	return checkVisible("token", token, MaxToken)
}

// checkVisible accepts visible ASCII characters and the empty text.
func checkVisible(field, text string, limit int) error {
	if len(text) > limit {
		return invalid(field, "is longer than "+decimal(int64(limit))+" bytes")
	}
	for i := range len(text) {
		if text[i] <= ' ' || text[i] > '~' {
			return invalid(field, "must consist of visible ASCII characters")
		}
	}
	return nil
}

// field is a text of a request, with its name for errors.
type field struct {
	name, text string
	limit      int
}

// checkTexts accepts UTF-8 without control characters. A limit of 0 means [MaxText].
func checkTexts(fields ...field) error {
	for _, f := range fields {
		if f.limit == 0 {
			f.limit = MaxText
		}
		if len(f.text) > f.limit {
			return invalid(f.name, "is longer than "+decimal(int64(f.limit))+" bytes")
		}
		for _, r := range f.text {
			if unicode.IsControl(r) || r == utf8.RuneError {
				return invalid(f.name, "must be valid UTF-8 without control characters")
			}
		}
	}
	return nil
}
