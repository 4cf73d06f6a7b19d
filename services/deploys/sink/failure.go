package sink

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// RetryAfter is an error of a destination that said when to come back.
type RetryAfter struct { //nolint:errname // a word of its own, as sinks say it
	// Delay from now.
	Delay time.Duration
	Err   error
}

// Error implements error.
func (r *RetryAfter) Error() string {
	return fmt.Sprintf("%v (to be tried again in %s)", r.Err, r.Delay.Round(time.Millisecond))
}

// Unwrap gives the cause.
func (r *RetryAfter) Unwrap() error { return r.Err }

// Permanent marks an error that trying again cannot mend: the fact is put on DEAD.
func Permanent(err error) error { return &permanentError{err} }

type permanentError struct{ error }

func (p *permanentError) Unwrap() error { return p.error }

// IsPermanent tells an error made by Permanent.
func IsPermanent(err error) bool {
	var p *permanentError
	return errors.As(err, &p)
}

// longestRetryAfter bounds what a destination may ask for.
const longestRetryAfter = time.Hour

// ParseRetryAfter reads a Retry-After header, seconds or a date; false when there is none that can be read. It is at most an hour.
func ParseRetryAfter(header http.Header, now time.Time) (time.Duration, bool) {
	text := header.Get("Retry-After")
	if seconds, err := strconv.ParseFloat(text, 64); err == nil && seconds >= 0 {
		return time.Duration(min(seconds, longestRetryAfter.Seconds()) * float64(time.Second)), true
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0, false
	}
	return min(max(at.Sub(now), 0), longestRetryAfter), true
}

// Concealed is err without the address that net/http puts into it: addresses of webhooks are secrets.
func Concealed(err error) error {
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
