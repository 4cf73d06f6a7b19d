package meter_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/state/meter"
)

func start() time.Time { return time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC) }

func limits() meter.Limits {
	return meter.Limits{
		Messages: 10, Bytes: 1000, DailyBytes: map[string]int64{"OBSERVED": 3000, "APPLIED": 700}, DailySubjects: 100,
	}
}

func message(at time.Time, subject string, bytes int) meter.Message {
	return meter.Message{AgentID: 7, Stream: "OBSERVED", Subject: subject, Bytes: bytes, Stored: at}
}

func TestEachHourlyLimitIsExceededOnceInAWindow(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		bytes int
		// after is the number of messages within the limits.
		after  int
		reason string
	}{
		"messages": {1, 10, "published more than 10 messages within an hour, the limit of agents.hourly_messages"},
		"bytes":    {100, 5, "published more than 500 bytes within an hour, the limit of agents.hourly_bytes"},
	} {
		hourly := limits()
		hourly.DailyBytes, hourly.Bytes = nil, 500
		m := meter.New(hourly)
		for window := range 3 {
			begin := start().Add(time.Duration(window) * meter.Window)
			for n := range 20 {
				excess, exceeded := m.Add(message(begin.Add(time.Duration(n)*time.Minute), "s", test.bytes))
				require.Equal(t, n == test.after, exceeded, "%s, message %d", name, n)
				if exceeded {
					require.Equal(t, meter.Excess{AgentID: 7, Reason: test.reason, Until: begin.Add(time.Hour)}, excess)
				}
			}
		}
	}
}

// TestAgentBelowItsHourlyLimitsFillsItsDailyShareOnly is an agent that publishes 900 bytes in each hour for three days.
func TestAgentBelowItsHourlyLimitsFillsItsDailyShareOnly(t *testing.T) {
	t.Parallel()
	m := meter.New(limits())
	var stored []meter.Message
	blocked := time.Time{}
	for hour := range 72 {
		at := start().Add(time.Duration(hour) * time.Hour)
		if at.Before(blocked) {
			require.Equal(t, []int64{7}, m.Exceeding(at))
			continue
		}
		require.Empty(t, m.Exceeding(at))
		for range 9 {
			added := message(at, "s", 100)
			stored = append(stored, added)
			if excess, exceeded := m.Add(added); exceeded {
				require.Equal(t, "published more than 3000 bytes on OBSERVED within 24 hours, the limit of agents.daily_share: "+
					"if it needs as much, raise streams.storage", excess.Reason)
				blocked = excess.Until
				break // it is disconnected
			}
		}
	}
	require.False(t, blocked.IsZero())
	for i, first := range stored {
		bytes := 0
		for _, each := range stored[i:] {
			if each.Stored.Sub(first.Stored) <= 24*time.Hour {
				bytes += each.Bytes
			}
		}
		require.LessOrEqual(t, bytes, 3000+100, "the message that exceeds the limit is stored")
	}
	require.Greater(t, len(stored), 2*30, "it may publish again every day")

	// A restart reads the last day again.
	restarted := meter.New(limits())
	end := start().Add(72 * time.Hour)
	for _, each := range stored {
		if end.Sub(each.Stored) <= meter.Day {
			restarted.Add(each)
		}
	}
	require.Equal(t, m.Exceeding(end), restarted.Exceeding(end))
}

func TestDailySubjectsAreCountedOnce(t *testing.T) {
	t.Parallel()
	m := meter.New(limits())
	add := func(hour, subject int) (meter.Excess, bool) {
		return m.Add(message(start().Add(time.Duration(hour)*time.Hour), strconv.Itoa(subject), 1))
	}
	for subject := range 100 {
		for _, repeated := range []int{subject, 0} {
			_, exceeded := add(subject/5, repeated)
			require.False(t, exceeded)
		}
	}
	excess, exceeded := add(20, 100)
	require.True(t, exceeded)
	require.Equal(t, meter.Excess{
		AgentID: 7, Reason: "published more than 100 subjects within 24 hours, the limit of agents.daily_subjects",
		Until: start().Truncate(time.Hour).Add(25 * time.Hour),
	}, excess)
	_, exceeded = add(25, 101)
	require.False(t, exceeded, "the first five have left")
}

func TestAgentsAndStreamsAreMeteredSeparately(t *testing.T) {
	t.Parallel()
	m := meter.New(limits())
	for agent := range int64(50) {
		for _, stream := range []string{"OBSERVED", "APPLIED"} {
			for range 7 {
				_, exceeded := m.Add(meter.Message{AgentID: agent, Stream: stream, Subject: "s", Bytes: 100, Stored: start()})
				require.False(t, exceeded)
			}
		}
	}
	// The streams are read at the same time: a newer message on one is no reason to count a day of the other as an hour.
	for hour := range 24 {
		_, exceeded := m.Add(meter.Message{
			AgentID: 99, Stream: "OBSERVED", Subject: "s", Bytes: 100, Stored: start().Add(time.Duration(hour) * time.Hour),
		})
		require.False(t, exceeded)
		_, exceeded = m.Add(meter.Message{AgentID: 99, Stream: "APPLIED", Subject: "s", Bytes: 10, Stored: start()})
		require.Equal(t, hour == 10, exceeded)
	}
}

func TestDefaultLimitsPermitTwoFullResyncsOfTheLargestAgentInAnHour(t *testing.T) {
	t.Parallel()
	// Each of 50,000 workspaces has a Deployment, a pod and five ReplicaSets, of 1.9, 1.9 and 1.5 KB.
	const objects, workspaces, bytes = 350_000, 50_000, 1610
	m := meter.New(meter.Default())
	for n := range 2 * objects {
		_, exceeded := m.Add(message(start(), strconv.Itoa(n%workspaces), bytes))
		require.False(t, exceeded, n)
	}
	least, limits := meter.Minimum(), meter.Default()
	require.GreaterOrEqual(t, least.Bytes, int64(objects*bytes))
	require.GreaterOrEqual(t, limits.Messages, least.Messages)
	require.GreaterOrEqual(t, limits.DailySubjects, least.DailySubjects)
}

func TestUseOfTheLimitsIsThatOfTheDay(t *testing.T) {
	t.Parallel()
	m := meter.New(limits())
	used := func(at time.Time) []meter.Usage { return m.Used(at, 0.25) }
	require.Empty(t, used(start()))
	m.Add(message(start(), "s", 600))
	require.Equal(t, []meter.Usage{{AgentID: 7, Stream: "OBSERVED", Part: 0.6}}, used(start()), "of the hourly bytes")
	later := start().Add(2 * time.Hour)
	require.Empty(t, used(later), "0.2 of the daily bytes")
	m.Add(message(later, "s", 900))
	require.InDelta(t, 0.5, used(later.Add(20 * time.Hour))[0].Part, 0.001, "of the daily bytes")
	require.InDelta(t, 0.3, used(later.Add(24 * time.Hour))[0].Part, 0.001, "the first message is older than a day")
	require.Empty(t, used(later.Add(26*time.Hour)))
	for n := range 30 {
		m.Add(message(later.Add(48*time.Hour), strconv.Itoa(n), 1))
	}
	require.InDelta(t, 0.3, used(later.Add(60 * time.Hour))[0].Part, 0.001, "of the daily subjects")
	require.Empty(t, used(later.Add(74*time.Hour)))
}
