package access

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestKeyIsValidUntilItExpiresOrIsRemoved(t *testing.T) {
	now := time.Now()
	k := NewKeys()
	_, err := k.Find("f", now)
	require.ErrorIs(t, err, ErrUnknownKey)
	changed := k.Changed()
	k.Set("f", Key{UserID: owner, ExpiresAt: now.Add(time.Hour)})
	<-changed
	key, err := k.Find("f", now)
	require.NoError(t, err)
	require.Equal(t, int64(owner), key.UserID)
	_, err = k.Find("f", now.Add(time.Hour))
	require.ErrorIs(t, err, ErrUnknownKey)
	k.Set("f", Key{UserID: owner})
	_, err = k.Find("f", now.Add(time.Hour))
	require.NoError(t, err)
	changed = k.Changed()
	k.Remove("f")
	<-changed
	_, err = k.Find("f", now)
	require.ErrorIs(t, err, ErrUnknownKey)
}
