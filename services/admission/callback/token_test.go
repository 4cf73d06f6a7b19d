package callback_test

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/admission/callback"
)

var (
	subject = callback.Subject{JobID: 7, ControllerID: 11, Attempt: 2}
	now     = time.Date(2026, 3, 2, 10, 40, 12, 0, time.UTC)
)

func issue() (callback.Token, callback.Stored) {
	token, hash := callback.New(subject)
	return token, callback.Stored{Subject: subject, Hash: hash, ExpiresAt: now.Add(time.Hour)}
}

func TestTokenIsGoodForOneUse(t *testing.T) {
	t.Parallel()
	token, stored := issue()
	used, err := stored.Use(token.Reveal(), subject, now)
	require.NoError(t, err)
	require.Equal(t, now, used.UsedAt)
	again, err := used.Use(token.Reveal(), subject, now.Add(time.Second))
	require.ErrorIs(t, err, callback.ErrUsed)
	require.Equal(t, used, again, "the first use stays")
}

func TestTokenExpires(t *testing.T) {
	t.Parallel()
	token, stored := issue()
	_, err := stored.Use(token.Reveal(), subject, stored.ExpiresAt.Add(-time.Nanosecond))
	require.NoError(t, err)
	after, err := stored.Use(token.Reveal(), subject, stored.ExpiresAt)
	require.ErrorIs(t, err, callback.ErrExpired)
	require.Equal(t, stored, after)
}

func TestTokenIsBoundToJobControllerAndAttempt(t *testing.T) {
	t.Parallel()
	token, stored := issue()
	for _, other := range []callback.Subject{
		{JobID: 8, ControllerID: 11, Attempt: 2},
		{JobID: 7, ControllerID: 12, Attempt: 2},
		{JobID: 7, ControllerID: 11, Attempt: 1},
	} {
		_, err := stored.Use(token.Reveal(), other, now)
		require.ErrorIs(t, err, callback.ErrInvalid)
		moved := stored
		moved.Subject = other
		_, err = moved.Use(token.Reveal(), other, now)
		require.ErrorIs(t, err, callback.ErrInvalid, "the hash is bound, too")
	}
}

func TestForeignAndMalformedTokensAreInvalid(t *testing.T) {
	t.Parallel()
	token, stored := issue()
	foreign, _ := callback.New(subject)
	text := token.Reveal()
	for _, wrong := range []string{
		"", callback.Prefix, foreign.Reveal(), text[:len(text)-1], text + "A", strings.TrimPrefix(text, callback.Prefix),
		strings.ToUpper(text), callback.Prefix + strings.Repeat("!", 43), strings.Repeat("x", 1<<20), text + "\n",
		callback.Prefix + base64.RawURLEncoding.EncodeToString(stored.Hash[:]),
	} {
		after, err := stored.Use(wrong, subject, now)
		require.ErrorIs(t, err, callback.ErrInvalid)
		require.Equal(t, stored, after)
	}
}

func TestTokensAreRandomAndDoNotPrint(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 1000 {
		token, _ := callback.New(subject)
		require.False(t, seen[token.Reveal()])
		seen[token.Reveal()] = true
		secret := strings.TrimPrefix(token.Reveal(), callback.Prefix)
		for _, printed := range []string{fmt.Sprint(token), fmt.Sprintf("%#v %+v %s", token, token, token)} {
			require.NotContains(t, printed, secret)
		}
	}
}
