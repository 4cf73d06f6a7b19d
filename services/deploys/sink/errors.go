package sink

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// RetryAfter is an error of a destination that asked for a delay.
type RetryAfter struct { //nolint:errname // Named after the HTTP header.
	// Delay from now.
	Delay time.Duration
	Err   error
}

// Error implements error.
func (r *RetryAfter) Error() string {
	return fmt.Sprintf("%v (retry in %s)", r.Err, r.Delay.Round(time.Millisecond))
}

// Unwrap returns the cause.
func (r *RetryAfter) Unwrap() error { return r.Err }

// maxRetryAfter is the maximum delay that a destination may ask for.
const maxRetryAfter = time.Hour

// ParseRetryAfter reads a Retry-After header, in seconds or as a date. The delay is at most an
// hour. It returns false if the header is absent or invalid.
func ParseRetryAfter(header http.Header, now time.Time) (time.Duration, bool) {
	text := header.Get("Retry-After")
	if seconds, err := strconv.ParseFloat(text, 64); err == nil && seconds >= 0 {
		return time.Duration(min(seconds, maxRetryAfter.Seconds()) * float64(time.Second)), true
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0, false
	}
	return min(max(at.Sub(now), 0), maxRetryAfter), true
}

// WithoutURL removes the URL that net/http adds to an error, because URLs of webhooks are secrets.
func WithoutURL(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return fmt.Errorf("%s: %w", e.Op, e.Err)
	}
	return err
}

func asRetryAfter(err error) (time.Duration, bool) {
	var r *RetryAfter
	if !errors.As(err, &r) {
		return 0, false
	}
	return r.Delay, true
}
