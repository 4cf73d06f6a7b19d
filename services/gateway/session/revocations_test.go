package session

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRevocationEndsEveryUseOfTheSessionAndNoOther(t *testing.T) {
	t.Parallel()
	now := time.Now()
	r := NewRevocations(func() time.Time { return now })
	first, releaseFirst := r.Use("a")
	second, releaseSecond := r.Use("a")
	other, releaseOther := r.Use("b")
	releaseFirst()
	releaseFirst() // once
	require.NoError(t, second.Err())
	r.Add("a", now.Add(time.Hour))
	r.Add("a", now.Add(time.Hour)) // the reader passes entries again
	require.Error(t, first.Err())
	require.Error(t, second.Err())
	require.NoError(t, other.Err())
	require.True(t, r.Revoked("a"))
	require.False(t, r.Revoked("b"))
	later, releaseLater := r.Use("a")
	require.Error(t, later.Err())
	for _, release := range []func(){releaseSecond, releaseOther, releaseLater} {
		release()
	}
	require.Empty(t, r.uses)
}

func TestRevocationIsForgottenWhenTheSessionWouldHaveEnded(t *testing.T) {
	t.Parallel()
	now := time.Now()
	r := NewRevocations(func() time.Time { return now })
	r.Add("a", now.Add(time.Hour))
	now = now.Add(2 * time.Hour)
	r.Add("old", now.Add(-time.Second))
	require.False(t, r.Revoked("old"))
	r.Add("b", now.Add(time.Hour))
	require.Len(t, r.revoked, 1)
}
