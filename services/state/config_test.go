package state

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAgentsGetAddressesThatTheyAccept(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig()
	cfg.NATS.URL = "nats-0:4222, tls://nats-1"
	require.Equal(t, []string{"nats://nats-0:4222", "tls://nats-1"}, cfg.agentURLs())
	require.NotContains(t, errors.Join(cfg.Validate()...).Error(), "agents.urls")

	for want, address := range map[string]string{
		`agents.urls: "nats:4222" is not nats://host:port, tls://host:port or wss://host`: "nats:4222",
		"agents.urls: the URL of n:4222 contains a user":                                  "nats://u:p@n:4222",
	} {
		cfg.Agents.URLs = []string{address}
		require.ErrorContains(t, errors.Join(cfg.Validate()...), want)
	}
}
