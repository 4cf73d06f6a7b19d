package agent_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/agent"
)

func TestRotationKeepsOneEarlierTokenForATime(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	first, second, third := []byte("first"), []byte("second"), []byte("third")
	a := agent.Agent{ID: 7, Name: "east", TokenHash: first}
	a, err := a.Rotate(second, time.Hour, now)
	require.NoError(t, err)
	require.Equal(t, agent.Agent{
		ID: 7, Name: "east", TokenHash: second, PreviousTokenHash: first, PreviousTokenValidUntil: now.Add(time.Hour),
	}, a)

	refused, err := a.Rotate(third, time.Hour, now.Add(time.Minute))
	require.True(t, fault.Is(err, errcode.FailedPrecondition))
	require.Equal(t,
		`agent "east" has two tokens until 2026-03-04T06:06:07Z: try again then, or end both at once with --valid-for 0s`,
		fault.From(err).Message)
	require.Equal(t, a, refused)

	ended, err := a.Rotate(third, 0, now.Add(time.Minute))
	require.NoError(t, err)
	require.Equal(t, third, ended.TokenHash)
	require.Equal(t, now.Add(time.Minute), ended.PreviousTokenValidUntil)

	for _, overlap := range []time.Duration{-time.Second, agent.MaxTokenOverlap + time.Second} {
		_, err = agent.Agent{ID: 7}.Rotate(first, overlap, now)
		require.True(t, fault.Is(err, errcode.InvalidArgument), overlap)
	}
	_, err = agent.Agent{ID: 7, Revoked: true}.Rotate(first, time.Hour, now)
	require.ErrorContains(t, err, "revoked")
}
