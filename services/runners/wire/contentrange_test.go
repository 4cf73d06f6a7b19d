package wire_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/wire"
)

func TestParseContentRange(t *testing.T) {
	t.Parallel()
	r, err := wire.ParseContentRange("920-940")
	require.NoError(t, err)
	require.Equal(t, wire.ContentRange{Start: 920, End: 940}, r)
	require.EqualValues(t, 21, r.Size())
	require.Equal(t, "920-940", r.String())

	r, err = wire.ParseContentRange("0-0")
	require.NoError(t, err)
	require.EqualValues(t, 1, r.Size())

	for _, value := range []string{
		"", "-", "0", "0-", "-5", "5-4", "0--1", "+1-2", "01-2", "1-02", " 1-2", "1-2 ", "1-2-3", "bytes 0-1/2", "0x1-0x2",
		"0-1125899906842624", "0-99999999999999999999", "1_0-2_0",
	} {
		_, err := wire.ParseContentRange(value)
		require.True(t, fault.Is(err, errcode.InvalidArgument), "%q: %v", value, err)
		require.ErrorContains(t, err, "such as 0-1954")
	}
}

// TestStoredRangeEndsWithTheSize is about a deviation from HTTP: runners continue at the second number.
func TestStoredRangeEndsWithTheSize(t *testing.T) {
	t.Parallel()
	require.Equal(t, "0-1955", wire.StoredRange(1955))
	require.Equal(t, "0-0", wire.StoredRange(0))
}

func TestIntervalIsWholeSecondsAndAtLeastOne(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "1", 10 * time.Millisecond: "1", time.Second: "1", 2600 * time.Millisecond: "3", time.Minute: "60",
	} {
		require.Equal(t, want, wire.Interval(d))
	}
}

// FuzzParseContentRange checks that an accepted range has one spelling and at least one byte.
func FuzzParseContentRange(f *testing.F) {
	f.Add("0-1954")
	f.Add("10-9")
	f.Add("0-1125899906842623")
	f.Fuzz(func(t *testing.T, value string) {
		r, err := wire.ParseContentRange(value)
		if err != nil {
			require.Equal(t, http.StatusBadRequest, fault.HTTPStatus(fault.CodeOf(err)))
			return
		}
		require.Equal(t, value, r.String())
		require.Positive(t, r.Size())
		require.GreaterOrEqual(t, r.Start, int64(0))
	})
}
