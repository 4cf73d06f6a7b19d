package meter_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/state/meter"
)

func start() time.Time { return time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC) }

func TestEachLimitIsExceededOnceInAWindow(t *testing.T) {
	t.Parallel()
	limits := meter.Limits{Messages: 10, Bytes: 1000, Subjects: 3}
	for name, test := range map[string]struct {
		bytes, subjects int
		// after is the number of messages within the limits.
		after  int
		reason string
	}{
		"messages": {1, 1, 10, "published more than 10 messages within an hour, the limit of agents.hourly_messages"},
		"bytes":    {200, 1, 5, "published more than 1000 bytes within an hour, the limit of agents.hourly_bytes"},
		"subjects": {1, 100, 3, "published more than 3 subjects within an hour, the limit of agents.hourly_subjects"},
	} {
		m := meter.New(limits)
		for window := range 3 {
			begin := start().Add(time.Duration(window) * meter.Window)
			for n := range 20 {
				excess, exceeded := m.Add(meter.Message{
					AgentID: 7, Subject: strconv.Itoa(n % test.subjects), Bytes: test.bytes,
					Stored: begin.Add(time.Duration(n) * time.Minute),
				})
				require.Equal(t, n == test.after, exceeded, "%s, message %d", name, n)
				if exceeded {
					want := meter.Excess{AgentID: 7, Reason: test.reason, Since: begin, Until: begin.Add(time.Hour)}
					require.Equal(t, want, excess)
				}
			}
		}
	}
}

func TestAgentsAreMeteredSeparately(t *testing.T) {
	t.Parallel()
	m := meter.New(meter.Limits{Messages: 2, Bytes: 100, Subjects: 2})
	for agent := range int64(50) {
		for range 2 {
			_, exceeded := m.Add(meter.Message{AgentID: agent, Subject: "s", Bytes: 50, Stored: start()})
			require.False(t, exceeded)
		}
	}
}

func TestDefaultLimitsPermitTwoFullResyncsOfTheLargestAgent(t *testing.T) {
	t.Parallel()
	// Each of 50,000 workspaces has a Deployment, a pod and five ReplicaSets, of 1.9, 1.9 and 1.5 KB.
	const objects, workspaces, bytes = 350_000, 50_000, 1610
	m := meter.New(meter.Default())
	for n := range 2 * objects {
		_, exceeded := m.Add(meter.Message{
			AgentID: 7, Subject: strconv.Itoa(n % workspaces), Bytes: bytes, Stored: start(),
		})
		require.False(t, exceeded, n)
	}
	least, limits := meter.Minimum(), meter.Default()
	require.GreaterOrEqual(t, least.Bytes, int64(objects*bytes))
	require.GreaterOrEqual(t, limits.Messages, least.Messages)
	require.GreaterOrEqual(t, limits.Subjects, least.Subjects)
}
