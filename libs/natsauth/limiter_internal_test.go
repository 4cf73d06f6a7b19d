package natsauth

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestHostWithInventedUsersIsLimited(t *testing.T) {
	t.Parallel()

	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	l := newLimiter(func() time.Time { return now })
	tries := 0

	for i := range 10 * limiterHostRefused {
		from := source{host: "10.0.0.1", user: "agent-" + strconv.Itoa(i)}
		if l.allowed(from) {
			tries++

			l.fail(from)
		}
	}

	require.Equal(t, limiterHostRefused, tries)
	require.True(t, l.allowed(source{host: "10.0.0.2", user: "agent-1"}), "another host")

	now = now.Add(limiterWindow)

	require.True(t, l.allowed(source{host: "10.0.0.1", user: "agent-1"}), "the next window")
}
