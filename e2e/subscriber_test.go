package e2e_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
)

// readSubscriber reads the file that was made for a tool.
func readSubscriber(t *testing.T, raw []byte) natsauth.SubscriberCredentials {
	t.Helper()
	var c natsauth.SubscriberCredentials
	require.NoError(t, json.Unmarshal(raw, &c))
	require.NotEmpty(t, c.Password)
	return c
}

// connectSubscriber connects as one of a tool's users, and gives what the server complains of.
func connectSubscriber(t *testing.T, c natsauth.SubscriberCredentials, user string) (*nats.Conn, chan error) {
	t.Helper()
	complaints := make(chan error, 100)
	options := []nats.Option{
		nats.UserInfo(user, c.Password), nats.CustomInboxPrefix(c.InboxPrefix), nats.NoReconnect(), nats.Timeout(patience),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { complaints <- err }),
	}
	if c.CA != "" {
		options = append(options, nats.RootCAs(c.CA))
	}
	conn, err := nats.Connect(c.URL, options...)
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	return conn, complaints
}

// requireDenied waits for the server's complaint about what was done last.
func requireDenied(t *testing.T, conn *nats.Conn, complaints chan error, what string) {
	t.Helper()
	require.NoError(t, conn.FlushTimeout(patience))
	select {
	case err := <-complaints:
		require.ErrorIs(t, err, nats.ErrPermissionViolation, what)
	case <-time.After(patience):
		require.FailNow(t, "the server lets it", what)
	}
}
