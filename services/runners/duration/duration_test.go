package duration_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/duration"
)

func TestParse(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"42":                    42 * time.Second,
		"42 seconds":            42 * time.Second,
		"3 mins 4 sec":          3*time.Minute + 4*time.Second,
		"2 hrs 20 min":          2*time.Hour + 20*time.Minute,
		"2h20min":               2*time.Hour + 20*time.Minute,
		"6 mos 1 day":           181 * day,
		"1 year":                365*day + 6*time.Hour,
		"3 weeks and 2 days":    23 * day,
		"1 week, 2 days, and 3": 9*day + 3*time.Second,
		" 1H 30M ":              90 * time.Minute,
		"0":                     0,
		"10 years":              duration.Max,
	} {
		got, err := duration.Parse(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                        "no duration",
		"  ":                      "no duration",
		"soon":                    `"soon": expected a number`,
		"-5 min":                  `"-5 min": expected a number`,
		"5 fortnights":            `unknown unit "fortnights"`,
		"1.5h":                    "expected a unit",
		"5 min and":               `"and": expected a number`,
		"11 years":                "longer than 10 years",
		"99999999999999999999 s":  "longer than 10 years",
		"9223372036854775807 y":   "longer than 10 years",
		strings.Repeat("1s ", 50): "at most 100 bytes",
	} {
		_, err := duration.Parse(text)
		require.ErrorContains(t, err, want, text)
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"1h 30m", "2 weeks and 1 day", "42", "10 years", "1.5h", "9223372036854775807 y"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := duration.Parse(text)
		if err != nil {
			require.Zero(t, d)
			return
		}
		require.GreaterOrEqual(t, d, time.Duration(0))
		require.LessOrEqual(t, d, duration.Max)
	})
}
