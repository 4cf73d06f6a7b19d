package vault_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/seal"
	"lockstep.internal/services/state/vault"
)

func newVault(t *testing.T) *vault.Vault {
	t.Helper()
	key, err := seal.GenerateKey()
	require.NoError(t, err)
	seed, err := key.Seed()
	require.NoError(t, err)
	v, err := vault.Open(seed.Reveal(), seal.GenerateDigestKey().Encode().Reveal())
	require.NoError(t, err)
	return v
}

func TestPullSecretsOpenOnlyForTheirProject(t *testing.T) {
	t.Parallel()
	v := newVault(t)
	values := seal.Values{"registry.example": seal.NewValue("ada:hunter2")}
	box, err := v.SealPull(4, values)
	require.NoError(t, err)
	require.NotContains(t, string(box), "hunter2")
	back, err := v.OpenPull(4, box)
	require.NoError(t, err)
	require.Equal(t, values, back)
	_, err = v.OpenPull(5, box)
	require.ErrorIs(t, err, seal.ErrWrongLabel)
	_, err = newVault(t).OpenPull(4, box)
	require.ErrorIs(t, err, seal.ErrNotOpened)
}

func TestStoredValuesOpenOnlyUnderTheirLabel(t *testing.T) {
	t.Parallel()
	v := newVault(t)
	values := seal.Values{"TOKEN": seal.NewValue("hunter2")}
	box, err := v.Seal("w1", vault.Env, values)
	require.NoError(t, err)
	require.NotContains(t, string(box), "hunter2")
	back, err := v.Open("w1", vault.Env, box)
	require.NoError(t, err)
	require.Equal(t, "hunter2", back["TOKEN"].Reveal())

	_, err = v.Open("w2", vault.Env, box)
	require.ErrorIs(t, err, seal.ErrWrongLabel, "another workspace's row")
	_, err = v.Open("w1", vault.Files, box)
	require.ErrorIs(t, err, seal.ErrWrongLabel, "another kind's row")
	_, err = newVault(t).Open("w1", vault.Env, box)
	require.Error(t, err, "another key")
}

func TestDigestChangesWithValuesAndKey(t *testing.T) {
	t.Parallel()
	v := newVault(t)
	one, two := seal.Values{"A": seal.NewValue("1")}, seal.Values{"A": seal.NewValue("2")}
	require.Equal(t, v.Digest(one), v.Digest(seal.Values{"A": seal.NewValue("1")}))
	require.NotEqual(t, v.Digest(one), v.Digest(two))
	require.NotEqual(t, v.Digest(one), newVault(t).Digest(one))
}

func TestOpenNamesTheInvalidKey(t *testing.T) {
	t.Parallel()
	_, err := vault.Open("nonsense", "nonsense")
	require.ErrorContains(t, err, "seal seed")
	key, err := seal.GenerateKey()
	require.NoError(t, err)
	seed, err := key.Seed()
	require.NoError(t, err)
	_, err = vault.Open(seed.Reveal(), "nonsense")
	require.ErrorContains(t, err, "digest key")
}
