package trace_test

import (
	"hash/crc32"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/trace"
)

func none() *trace.Mask { return trace.NewMask(nil) }

func appended(t *testing.T, s trace.State, text string) trace.State {
	t.Helper()
	s, w, err := s.Append(none(), s.Size, []byte(text), trace.DefaultLimit)
	require.NoError(t, err)
	require.Equal(t, text, string(w.Data))
	require.Equal(t, s.Generation, w.Generation)
	return s
}

func report(text string) trace.Report {
	return trace.Report{Checked: true, CRC: crc32.ChecksumIEEE([]byte(text)), Size: int64(len(text))}
}

func finish(t *testing.T, s trace.State, r trace.Report) (trace.State, bool) {
	t.Helper()
	s, w, done, err := s.Finish(none(), r)
	require.NoError(t, err)
	require.Empty(t, w.Data)
	return s, done
}

func TestOnlyWhatContinuesTheTraceIsAppended(t *testing.T) {
	t.Parallel()
	s := appended(t, trace.State{}, "hello ")
	for _, offset := range []int64{0, 5, 7, 1 << 40} {
		unchanged, w, err := s.Append(none(), offset, []byte("x"), trace.DefaultLimit)
		var r *trace.RangeError
		require.ErrorAs(t, err, &r)
		require.Equal(t, int64(6), r.Size)
		require.ErrorContains(t, err, "continue at byte 6")
		require.Equal(t, s, unchanged)
		require.Empty(t, w)
	}
	s = appended(t, s, "world")
	require.Equal(t, crc32.ChecksumIEEE([]byte("hello world")), s.CRC)
}

func TestLimit(t *testing.T) {
	t.Parallel()
	s, _, err := trace.State{}.Append(none(), 0, []byte("12345678"), 8)
	require.NoError(t, err)
	unchanged, _, err := s.Append(none(), 8, []byte("9"), 8)
	require.ErrorIs(t, err, trace.ErrTooLarge)
	require.Equal(t, s, unchanged)
}

func TestTheChecksumEndsTheTrace(t *testing.T) {
	t.Parallel()
	s, done := finish(t, appended(t, trace.State{}, "hello"), report("hello"))
	require.True(t, done)
	require.True(t, s.Verified)
	require.Equal(t, trace.Generation{Size: 5}, s.Visible())

	again, done := finish(t, s, report("other"))
	require.True(t, done, "a repeated report gets the same answer")
	require.Equal(t, s, again)
	_, _, err := s.Append(none(), 5, []byte("x"), trace.DefaultLimit)
	require.ErrorIs(t, err, trace.ErrEnded)
}

func TestARunnerWithoutChecksumIsNotVerified(t *testing.T) {
	t.Parallel()
	s, done := finish(t, appended(t, trace.State{}, "hello"), trace.Report{})
	require.True(t, done)
	require.False(t, s.Verified)
}

func TestAfterAMismatchTheRunnerSendsAllAgain(t *testing.T) {
	t.Parallel()
	s, done := finish(t, appended(t, trace.State{}, "hexxo"), report("hello"))
	require.False(t, done)
	require.Zero(t, s.Size)
	require.Equal(t, trace.Generation{Number: 0, Size: 5}, s.Visible(), "readers keep what they had")
	s = appended(t, s, "hel")
	require.Equal(t, trace.Generation{Number: 0, Size: 5}, s.Visible())
	s = appended(t, s, "lo")
	require.Equal(t, trace.Generation{Number: 1, Size: 5}, s.Visible())
	s, done = finish(t, s, report("hello"))
	require.True(t, done)
	require.True(t, s.Verified)
	require.Equal(t, trace.Generation{Number: 1, Size: 5}, s.Visible())
}

func TestATraceNeverShrinks(t *testing.T) {
	t.Parallel()
	s, done := finish(t, appended(t, trace.State{}, "incriminating"), report(""))
	require.False(t, done)
	s, done = finish(t, appended(t, s, "innocent"), report("innocent"))
	require.True(t, done)
	require.False(t, s.Verified)
	require.Equal(t, trace.Generation{Number: 0, Size: 13}, s.Visible())
}

func TestAWrongChecksumCannotKeepAJobFromEnding(t *testing.T) {
	t.Parallel()
	s := trace.State{}
	for range trace.MaxResends {
		var done bool
		s, done = finish(t, appended(t, s, "hello"), report("other"))
		require.False(t, done)
	}
	s, done := finish(t, appended(t, s, "hello"), report("other"))
	require.True(t, done)
	require.False(t, s.Verified)
	require.Equal(t, trace.Generation{Number: trace.MaxResends, Size: 5}, s.Visible())
}

func TestHeldBytesOfAnotherMaskAreRefused(t *testing.T) {
	t.Parallel()
	s, _, err := trace.State{}.Append(trace.NewMask([]string{"a", "secret"}), 0, []byte("sec"), trace.DefaultLimit)
	require.NoError(t, err)
	_, _, err = s.Append(none(), 3, []byte("x"), trace.DefaultLimit)
	require.ErrorIs(t, err, trace.ErrMask)
	unchanged, _, _, err := s.Finish(none(), trace.Report{})
	require.Equal(t, s, unchanged)
	require.ErrorIs(t, err, trace.ErrMask)
}
