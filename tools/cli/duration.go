package cli

import (
	"errors"
	"math"
	"regexp"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

var inDays = regexp.MustCompile(`^(\d+)d(.*)$`)

// parseDuration parses a duration of Go, which may begin with days: 7d, 1d12h.
func parseDuration(text string) (time.Duration, error) {
	var days time.Duration
	if parts := inDays.FindStringSubmatch(text); parts != nil {
		const day = 24 * time.Hour
		n, err := strconv.ParseInt(parts[1], 10, 64)
		if err != nil || n > math.MaxInt64/int64(day)-1 {
			return 0, errors.New("too long")
		}
		if days = time.Duration(n) * day; parts[2] == "" {
			return days, nil
		}
		text = parts[2]
	}
	d, err := time.ParseDuration(text)
	return days + d, err //nolint:wrapcheck // the callers say what they want
}

// durationValue is a flag that takes days, too.
type durationValue time.Duration

func (d *durationValue) Set(text string) error {
	parsed, err := parseDuration(text)
	if err == nil {
		*d = durationValue(parsed)
	}
	return err
}

func (d *durationValue) String() string { return shortDuration(durationpb.New(time.Duration(*d))) }
func (*durationValue) Type() string     { return "duration" }

// durationFlag adds a flag for a duration with its default value.
func durationFlag(c *cobra.Command, to *time.Duration, flag string, value time.Duration, usage string) {
	*to = value
	c.Flags().Var((*durationValue)(to), flag, usage)
	if value == 0 {
		c.Flags().Lookup(flag).DefValue = "" // 0 is explained, and not a default to show
	}
}

// parseTime parses a time, or a duration before now. An empty value is the zero time.
func parseTime(flag, value string, now time.Time) (time.Time, error) {
	if value == "" {
		return time.Time{}, nil
	}
	if d, err := parseDuration(value); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	t, err := time.Parse(time.RFC3339, value)
	if err != nil {
		return time.Time{}, fault.New(errcode.InvalidArgument,
			"%s %q must be a time such as 2026-01-02T15:04:05Z or a duration such as 2h or 7d", flag, value)
	}
	return t, nil
}
