package session

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func keys(t *testing.T, lines ...string) Keys {
	parsed, err := ParseKeys(strings.Join(lines, "\n"))
	require.NoError(t, err)
	return parsed
}

func TestSealedValueOpensWithItsKeyAndPurposeOnly(t *testing.T) {
	first, second := GenerateKey(), GenerateKey()
	text, err := keys(t, first).Seal("session of a", Session{ID: "x", Login: "ada"})
	require.NoError(t, err)
	require.NotContains(t, text, "ada")

	var opened Session
	require.NoError(t, keys(t, first).Open("session of a", text, &opened))
	require.Equal(t, "ada", opened.Login)
	require.NoError(t, keys(t, "# since today", second, "", first).Open("session of a", text, &opened), "a key is rotated")

	require.ErrorIs(t, keys(t, second).Open("session of a", text, &opened), ErrNotSealed)
	require.ErrorIs(t, keys(t, first).Open("session of b", text, &opened), ErrNotSealed)
	for i := range text {
		changed := []byte(text)
		changed[i] ^= 1
		if string(changed[:len(text)-1]) == text[:len(text)-1] {
			continue // the last character has bits that do not count
		}
		require.Error(t, keys(t, first).Open("session of a", string(changed), &opened), "%d", i)
	}
	for _, bad := range []string{"", "x", "!", strings.Repeat("A", 100), strings.Repeat("A", 10_000)} {
		require.ErrorIs(t, keys(t, first).Open("session of a", bad, &opened), ErrNotSealed)
	}
}

func TestValuesAreLimited(t *testing.T) {
	_, err := keys(t, GenerateKey()).Seal("x", strings.Repeat("x", 4000))
	require.ErrorContains(t, err, "at most 4000 are allowed")
	_, err = keys(t, GenerateKey()).Seal("x", func() {})
	require.Error(t, err)
}

func TestInvalidKeysAreErrorsWithoutTheirContent(t *testing.T) {
	for text, want := range map[string]string{
		"": "there is no key", "# x": "there is no key", GenerateKey() + "\nc2VjcmV0": "line 2 is not a key", "?": "line 1",
	} {
		_, err := ParseKeys(text)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "c2VjcmV0")
	}
}

func TestSessionExpires(t *testing.T) {
	now := time.Now()
	require.True(t, Session{ID: "x", ExpiresAt: now.Add(time.Second)}.Valid(now))
	require.False(t, Session{ID: "x", ExpiresAt: now}.Valid(now))
	require.False(t, Session{ExpiresAt: now.Add(time.Second)}.Valid(now))
}
