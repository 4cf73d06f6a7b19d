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

func TestEachHourlyLimitIsExceededOnceInAnHourOfTheClock(t *testing.T) {
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
				excess, exceeded := m.Add(message(begin.Add(time.Duration(n)*time.Second), "s", test.bytes))
				require.Equal(t, n == test.after, exceeded, "%s, message %d", name, n)
				if exceeded {
					require.Equal(t, meter.Excess{
						AgentID: 7, Reason: test.reason, Until: begin.Truncate(time.Hour).Add(time.Hour),
					}, excess)
				}
			}
		}
	}
}

func TestExcessOfAnAgentThatStillPublishesIsReportedEachMinute(t *testing.T) {
	t.Parallel()
	m := meter.New(limits())
	for range 10 {
		_, exceeded := m.Add(message(start(), "s", 1))
		require.False(t, exceeded)
	}
	var reported []int
	for seconds := range 200 {
		excess, exceeded := m.Add(message(start().Add(time.Duration(seconds)*time.Second), "s", 1))
		if exceeded {
			reported = append(reported, seconds)
			require.Equal(t, start().Truncate(time.Hour).Add(time.Hour), excess.Until)
			require.Equal(t, len(reported) > 1, excess.Repeated)
		}
	}
	require.Equal(t, []int{0, 61, 122, 183}, reported)
}

func TestRestartKeepsEachBlock(t *testing.T) {
	t.Parallel()
	bytesOfTheDay := []meter.Message{}
	for hour := range 4 {
		bytesOfTheDay = append(bytesOfTheDay, message(start().Add(time.Duration(hour)*time.Hour), "s", 900))
	}
	bytesOfTheHour := []meter.Message{}
	for minutes := range 30 * 60 / 7 {
		bytesOfTheHour = append(bytesOfTheHour, message(start().Add(time.Duration(minutes)*7*time.Minute), "s", 1))
	}
	last := start().Add(30 * time.Hour)
	bytesOfTheHour = append(bytesOfTheHour, message(last, "s", 600), message(last.Add(20*time.Minute), "s", 600))
	for name, stored := range map[string][]meter.Message{"the day": bytesOfTheDay, "the hour": bytesOfTheHour} {
		running := meter.New(limits())
		for _, each := range stored {
			running.Add(each)
		}
		last, blocked := stored[len(stored)-1].Stored, 0
		for after := range 30 * 60 {
			now := last.Add(time.Duration(after) * time.Minute)
			restarted := meter.New(limits())
			for _, each := range stored {
				if !each.Stored.Before(meter.Since(now)) {
					restarted.Add(each)
				}
			}
			require.Equal(t, running.Exceeding(now), restarted.Exceeding(now), "%s, at %s", name, now)
			blocked += len(running.Exceeding(now))
		}
		require.Positive(t, blocked, name)
	}
}

func TestAgentWithoutMessagesIsForgotten(t *testing.T) {
	t.Parallel()
	m := meter.New(limits())
	for agent := range int64(10) {
		m.Add(meter.Message{AgentID: agent, Stream: "OBSERVED", Subject: "s", Bytes: 5000, Stored: start()})
		m.Add(meter.Message{AgentID: agent, Stream: "APPLIED", Subject: "s", Bytes: 1, Stored: start()})
	}
	next := start().Truncate(time.Hour).Add(24 * time.Hour)
	m.Add(message(next, "s", 1))
	require.Len(t, m.Used(next, 0), 20)
	require.Len(t, m.Exceeding(next), 10)
	next = next.Add(time.Hour)
	require.Empty(t, m.Exceeding(next))
	m.Add(message(next, "s", 1))
	require.Len(t, m.Used(next, 0), 11, "one on OBSERVED, all on APPLIED: each stream has its own time")
	m.Add(meter.Message{AgentID: 99, Stream: "APPLIED", Subject: "s", Bytes: 1, Stored: next})
	require.Len(t, m.Used(next, 0), 2)
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
