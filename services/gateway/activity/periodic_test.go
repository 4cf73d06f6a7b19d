package activity

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// simulated is a table with a clock, and two sessions of ada.
type simulated struct {
	now      time.Time
	table    *Table
	sessions [2]*Session
}

func newSimulated() *simulated {
	s := &simulated{now: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)}
	s.table = New(func() time.Time { return s.now })
	for i := range s.sessions {
		s.sessions[i] = s.table.Open(workspace, ada)
	}
	return s
}

// idleAfter does steps for ten hours, and returns after which time there was no activity any more.
func (s *simulated) idleAfter(step func(n int)) time.Duration {
	begin := s.now
	last := begin
	for n := 0; s.now.Before(begin.Add(10 * time.Hour)); n++ {
		step(n)
		for _, record := range s.table.Take() {
			last = record.InputAt
		}
	}
	return last.Sub(begin)
}

func milliseconds(numbers ...int) []time.Duration {
	out := make([]time.Duration, len(numbers))
	for i, n := range numbers {
		out[i] = time.Duration(n) * time.Millisecond
	}
	return out
}

func TestOpenEditorIsIdle(t *testing.T) {
	t.Parallel()
	s := newSimulated()
	jitter := milliseconds(0, 90, -70, 20, -110, 60)
	require.Less(t, s.idleAfter(func(n int) { // a keep-alive of 13 bytes each 5 s on each of two connections
		s.sessions[0].Input(13)
		s.now = s.now.Add(1800*time.Millisecond + jitter[n%len(jitter)])
		s.sessions[1].Input(13)
		s.now = s.now.Add(3200*time.Millisecond - jitter[n%len(jitter)])
	}), time.Minute)

	s = newSimulated()
	require.Less(t, s.idleAfter(func(int) { // both on one connection, as over SSH
		s.sessions[0].Input(13)
		s.now = s.now.Add(1700 * time.Millisecond)
		s.sessions[0].Input(13)
		s.now = s.now.Add(3300 * time.Millisecond)
	}), time.Minute)

	s = newSimulated()
	require.Less(t, s.idleAfter(func(int) { // two of one size, one directly after the other
		s.sessions[0].Input(13)
		s.now = s.now.Add(2 * time.Millisecond)
		s.sessions[0].Input(13)
		s.now = s.now.Add(4998 * time.Millisecond)
	}), time.Minute)
}

func TestPollingPageIsIdle(t *testing.T) {
	t.Parallel()
	for _, period := range []time.Duration{time.Second, 30 * time.Second, 5 * time.Minute} {
		s := newSimulated()
		idle := s.idleAfter(func(int) {
			request := s.table.Open(workspace, ada)
			request.Request("GET /status", 0)
			request.Close()
			s.now = s.now.Add(period)
		})
		require.LessOrEqual(t, idle, 2*period+2*time.Second, "each %s", period)
	}
}

func TestTypingIsActivity(t *testing.T) {
	t.Parallel()
	intervals := milliseconds(180, 240, 90, 1400, 210, 30, 5200, 170, 800)
	s := newSimulated()
	require.Greater(t, s.idleAfter(func(n int) {
		s.sessions[0].Input(1)
		s.now = s.now.Add(intervals[n%len(intervals)])
	}), 10*time.Hour-2*time.Minute)

	s = newSimulated()
	require.Greater(t, s.idleAfter(func(n int) { // beside a keep-alive of the same size
		s.sessions[0].Input(13)
		s.now = s.now.Add(5 * time.Second)
		if n%100 == 0 {
			s.now = s.now.Add(time.Duration(n/100*37%60) * time.Second)
			s.sessions[0].Input(40)
			s.sessions[0].Input(700)
		}
	}), 9*time.Hour)
	require.Less(t, len(s.sessions[0].messages), maxKinds)
}

func TestPeriodicMessagesAreForgottenAndBounded(t *testing.T) {
	t.Parallel()
	s := newSimulated()
	for n := range 10 * maxKinds {
		s.sessions[0].Input(n + 1)
		s.now = s.now.Add(time.Second)
	}
	require.Len(t, s.sessions[0].messages, maxKinds)
	request := s.table.Open("other", ada)
	request.Request("GET /", 0)
	request.Close()
	s.sessions[0].Close()
	s.sessions[1].Close()
	s.table.Take()
	s.now = s.now.Add(time.Hour)
	s.table.Take()
	require.Empty(t, s.table.counts)
}
