package natsauth_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
)

func TestSubscriberCredentialsFile(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "ci.json")
	token := natsauth.NewToken(natsauth.TokenSubscriber)
	want := natsauth.SubscriberCredentials{
		Description: "Lockstep",
		URL:         "nats://127.0.0.1:4222",
		User:        "ci",
		Password:    token,
		Listener:    "ci.live",
		InboxPrefix: "_INBOX_ci",
		Stream:      "DEPLOYS",
		Consumer:    "subscriber-ci",
		Filter:      "lockstep.local.deploy.>",
	}
	require.NoError(t, os.WriteFile(path, []byte("something old, readable by all"), 0o644))
	require.NoError(t, natsauth.WriteSubscriberCredentials(path, want, "PEM"))

	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())

	raw, err := os.ReadFile(path)
	require.NoError(t, err)

	var got natsauth.SubscriberCredentials

	require.NoError(t, json.Unmarshal(raw, &got))

	want.CA = filepath.Join(filepath.Dir(path), "ci.ca.pem")
	require.Equal(t, want, got)

	pem, err := os.ReadFile(want.CA)
	require.NoError(t, err)
	require.Equal(t, "PEM", string(pem))

	require.NotContains(t, fmt.Sprintf("%v %+v %#v", got, got, []any{got}), token)
	require.ErrorIs(
		t, natsauth.WriteSubscriberCredentials(path, natsauth.SubscriberCredentials{}, ""),
		natsauth.ErrInvalidSubscriberCredentials,
	)
}
