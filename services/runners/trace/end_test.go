package trace_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/trace"
)

// stored is what readers see after the writes.
type stored map[int][]byte

func (s stored) write(writes ...trace.Write) {
	for _, w := range writes {
		s[w.Generation] = append(s[w.Generation][:w.Offset], w.Data...)
	}
}

func TestAbandonedTraceShowsNoStartOfAMaskedValue(t *testing.T) {
	t.Parallel()
	mask := trace.NewMask([]string{"swordfish"})
	s, w, err := trace.State{}.Append(mask, 0, []byte("a swordf"), trace.DefaultLimit)
	require.NoError(t, err)
	text := stored{}
	text.write(w)
	s, w = s.Abandon()
	text.write(w)
	require.Equal(t, "a ******", string(text[0]))
	require.Equal(t, trace.Generation{Size: 8}, s.Visible())
	require.False(t, s.Verified)
	again, w := s.Abandon()
	require.Equal(t, s, again)
	require.Empty(t, w)
	_, _, err = s.Append(mask, 8, []byte("ish"), trace.DefaultLimit)
	require.ErrorIs(t, err, trace.ErrEnded)
}

func TestTraceOverItsLimitEndsOnceWithANote(t *testing.T) {
	t.Parallel()
	mask := trace.NewMask([]string{"swordfish"})
	s, w, err := trace.State{}.Append(mask, 0, []byte("12345 swo"), 12)
	require.NoError(t, err)
	text := stored{}
	text.write(w)
	_, _, err = s.AppendLast(mask, 4, []byte("x"), 12, "full")
	var outOfRange *trace.RangeError
	require.ErrorAs(t, err, &outOfRange)
	s, writes, err := s.AppendLast(mask, 9, []byte("rdfish"), 12, "\nfull\n")
	require.NoError(t, err)
	text.write(writes...)
	require.Equal(t, "12345 ******\nfull\n", string(text[0]))
	require.Equal(t, trace.Generation{Size: 18}, s.Visible())
	for _, offset := range []int64{0, 9, 12, 18} {
		_, _, err = s.Append(mask, offset, []byte("x"), 12)
		require.ErrorIs(t, err, trace.ErrTooLarge)
		_, _, err = s.AppendLast(mask, offset, []byte("x"), 12, "full")
		require.ErrorIs(t, err, trace.ErrTooLarge)
	}
	finished, _, done, err := s.Finish(mask, trace.Report{Checked: true, CRC: 1, Size: 40})
	require.NoError(t, err)
	require.True(t, done, "the runner is not asked for a trace that cannot be stored")
	require.Equal(t, s, finished)
}

func TestShorterGenerationOverTheLimitKeepsTheLongerOne(t *testing.T) {
	t.Parallel()
	mask := trace.NewMask(nil)
	s := trace.State{Generation: 1, Longest: trace.Generation{Number: 0, Size: 20}}
	s, writes, err := s.AppendLast(mask, 0, []byte("0123456789"), 5, "full")
	require.NoError(t, err)
	require.Equal(t, trace.Generation{Number: 0, Size: 24}, s.Visible())
	require.Equal(t, trace.Write{Generation: 0, Offset: 20, Data: []byte("full")}, writes[2])
}
