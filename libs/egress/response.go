package egress

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

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
