// Package duration parses durations as people write them in CI configuration: "1h 30m", "3 mins 4 sec", "2 weeks".
// The units are those of GitLab's documentation: a month has 30 days, a year has 365.25 days, and a number without a
// unit counts seconds.
package duration

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Max is the longest duration that [Parse] returns: ten years.
const Max = 10 * year

const (
	day   = 24 * time.Hour
	year  = 365*day + 6*time.Hour
	bytes = 100 // of text
)

// ErrTooLong reports a duration longer than [Max].
var ErrTooLong = errors.New("longer than 10 years")

var units = map[string]time.Duration{
	"s": time.Second, "sec": time.Second, "secs": time.Second, "second": time.Second, "seconds": time.Second,
	"m": time.Minute, "min": time.Minute, "mins": time.Minute, "minute": time.Minute, "minutes": time.Minute,
	"h": time.Hour, "hr": time.Hour, "hrs": time.Hour, "hour": time.Hour, "hours": time.Hour,
	"d": day, "day": day, "days": day,
	"w": 7 * day, "wk": 7 * day, "wks": 7 * day, "week": 7 * day, "weeks": 7 * day,
	"mo": 30 * day, "mos": 30 * day, "month": 30 * day, "months": 30 * day,
	"y": year, "yr": year, "yrs": year, "year": year, "years": year,
}

// Parse returns the duration of text. Numbers are decimal integers without a sign. Spaces, commas and the word "and"
// separate its terms. The case does not matter. Errors: no term, an unknown unit, more than 100 bytes, [ErrTooLong].
func Parse(text string) (time.Duration, error) {
	if len(text) > bytes {
		return 0, fmt.Errorf("a duration has at most %d bytes", bytes)
	}
	rest := strings.ToLower(strings.TrimSpace(text))
	if rest == "" {
		return 0, errors.New("no duration: write for example 1h 30m")
	}
	var total time.Duration
	for rest != "" {
		amount, unit, after, err := term(rest)
		if err != nil {
			return 0, err
		}
		if amount > int64((Max-total)/unit) {
			return 0, ErrTooLong
		}
		total += time.Duration(amount) * unit
		rest = after
	}
	return total, nil
}

// term reads a number, its unit and the separator behind it.
func term(text string) (amount int64, unit time.Duration, rest string, err error) {
	digits := span(text, func(c byte) bool { return '0' <= c && c <= '9' })
	if digits == 0 {
		return 0, 0, "", fmt.Errorf("%q: expected a number, such as in 1h 30m", text)
	}
	amount, err = strconv.ParseInt(text[:digits], 10, 64)
	if err != nil {
		return 0, 0, "", ErrTooLong
	}
	rest = strings.TrimLeft(text[digits:], " ")
	letters := span(rest, func(c byte) bool { return 'a' <= c && c <= 'z' })
	name := rest[:letters]
	rest = rest[letters:]
	if name == "" {
		if rest != "" {
			return 0, 0, "", fmt.Errorf("%q: expected a unit, such as s, m, h, days or weeks", rest)
		}
		return amount, time.Second, "", nil
	}
	unit, ok := units[name]
	if !ok {
		return 0, 0, "", fmt.Errorf("unknown unit %q: use s, m, h, days, weeks, months or years", name)
	}
	return amount, unit, separator(rest), nil
}

// separator removes spaces, commas and "and" before the next term. What it leaves at the end is an error of the next
// term.
func separator(text string) string {
	rest := strings.TrimLeft(text, " ,")
	if after, ok := strings.CutPrefix(rest, "and "); ok {
		rest = strings.TrimLeft(after, " ")
	}
	return rest
}

func span(text string, is func(byte) bool) int {
	n := 0
	for n < len(text) && is(text[n]) {
		n++
	}
	return n
}
