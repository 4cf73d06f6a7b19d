package security_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/natsauth"
)

// readSubscriber reads a subscriber's credentials file.
func readSubscriber(t testing.TB, raw []byte) natsauth.SubscriberCredentials {
	t.Helper()
	var c natsauth.SubscriberCredentials
	require.NoError(t, json.Unmarshal(raw, &c))
	require.NotEmpty(t, c.Password)
	return c
}

// connectSubscriber connects as a user of a subscriber. The channel receives permission violations.
func connectSubscriber(t testing.TB, c natsauth.SubscriberCredentials, user string) (*nats.Conn, chan error) {
	t.Helper()
	violations := make(chan error, 100)
	options := []nats.Option{
		nats.UserInfo(user, c.Password),
		nats.CustomInboxPrefix(c.InboxPrefix),
		nats.NoReconnect(),
		nats.Timeout(fixture.Timeout),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { violations <- err }),
	}
	if c.CA != "" {
		options = append(options, nats.RootCAs(c.CA))
	}
	conn, err := nats.Connect(c.URL, options...)
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	return conn, violations
}

// requireDenied waits for the permission violation of the last operation.
func requireDenied(t testing.TB, conn *nats.Conn, violations chan error, what string) {
	t.Helper()
	require.NoError(t, conn.FlushTimeout(fixture.Timeout))
	select {
	case err := <-violations:
		require.ErrorIs(t, err, nats.ErrPermissionViolation, what)
	case <-time.After(fixture.Timeout):
		require.FailNow(t, "the server allows it", what)
	}
}
