package signingkey_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/seal"
	"lockstep.internal/libs/signingkey"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestBoxOpensWithItsKeyAndLabelOnly(t *testing.T) {
	t.Parallel()
	own, err := seal.GenerateKey()
	require.NoError(t, err)
	other, err := seal.GenerateKey()
	require.NoError(t, err)
	made, err := signingkey.Schedule{Lifetime: time.Hour}.New(time.Now())
	require.NoError(t, err)
	box, err := signingkey.Seal(made.Private, "keys/a", own)
	require.NoError(t, err)
	opened, err := signingkey.Open(box, "keys/a", own)
	require.NoError(t, err)
	require.Equal(t, made.Private, opened)
	_, err = signingkey.Open(box, "keys/b", own)
	require.Error(t, err, "a box that was moved to another key")
	_, err = signingkey.Open(box, "keys/a", other)
	require.ErrorIs(t, err, seal.ErrNotOpened)
	_, err = signingkey.Seal(made.Private, "keys/a", seal.Key{})
	require.ErrorIs(t, err, seal.ErrInvalidKey)
}
