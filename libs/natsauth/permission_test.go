package natsauth_test

import (
	"testing"

	"github.com/nats-io/jwt/v2"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
)

func TestPermissions(t *testing.T) {
	t.Parallel()

	nothing := jwt.Permissions{
		Pub: jwt.Permission{Deny: jwt.StringList{">"}},
		Sub: jwt.Permission{Deny: jwt.StringList{">"}},
	}

	for name, row := range map[string]struct {
		cell      topology.Cell
		principal natsauth.Principal
		want      jwt.Permissions
	}{
		"agent": {
			"eu-1",
			natsauth.Principal{Kind: natsauth.KindAgent, AgentID: 7},
			jwt.Permissions{
				Pub: jwt.Permission{Allow: jwt.StringList{
					"lockstep.eu-1.observed.7.>",
					"lockstep.eu-1.applied.7.*",
					"lockstep.eu-1.secret.7.*",
					"$JS.API.CONSUMER.MSG.NEXT.DESIRED.dispatcher-7",
					"$JS.API.CONSUMER.INFO.DESIRED.dispatcher-7",
					"$JS.API.CONSUMER.RESET.DESIRED.dispatcher-7",
					"$JS.ACK.DESIRED.dispatcher-7.>",
					"$JS.API.CONSUMER.MSG.NEXT.CONTROL.dispatcher-7",
					"$JS.API.CONSUMER.INFO.CONTROL.dispatcher-7",
					"$JS.API.CONSUMER.RESET.CONTROL.dispatcher-7",
					"$JS.ACK.CONTROL.dispatcher-7.>",
					"$JS.API.CONSUMER.MSG.NEXT.CONTROL.watcher-7",
					"$JS.API.CONSUMER.INFO.CONTROL.watcher-7",
					"$JS.API.CONSUMER.RESET.CONTROL.watcher-7",
					"$JS.ACK.CONTROL.watcher-7.>",
				}},
				Sub: jwt.Permission{Allow: jwt.StringList{"_INBOX_7.>"}},
			},
		},
		"subscriber":       {"local", natsauth.Principal{Kind: natsauth.KindSubscriber, Name: "reader"}, nothing},
		"nobody":           {"local", natsauth.Principal{}, nothing},
		"unknown kind":     {"local", natsauth.Principal{Kind: 99, AgentID: 7}, nothing},
		"agent without id": {"local", natsauth.Principal{Kind: natsauth.KindAgent}, nothing},
		"negative agent":   {"local", natsauth.Principal{Kind: natsauth.KindAgent, AgentID: -7}, nothing},
		"no cell":          {"", natsauth.Principal{Kind: natsauth.KindAgent, AgentID: 7}, nothing},
		"wildcard cell":    {"*", natsauth.Principal{Kind: natsauth.KindAgent, AgentID: 7}, nothing},
		"two tokens":       {"a.b", natsauth.Principal{Kind: natsauth.KindAgent, AgentID: 7}, nothing},
	} {
		require.Equal(t, row.want, natsauth.Permissions(row.cell, row.principal), name)
	}
}

func TestPrincipals(t *testing.T) {
	t.Parallel()

	agent := natsauth.Principal{Kind: natsauth.KindAgent, AgentID: 7}
	require.NoError(t, agent.Validate())
	require.Equal(t, natsauth.AccountAgents, agent.Account())
	require.Equal(t, "7", agent.User())

	reader := natsauth.Principal{Kind: natsauth.KindSubscriber, Name: "reader-1"}
	require.NoError(t, reader.Validate())
	require.Equal(t, natsauth.AccountSubscribers, reader.Account())
	require.Equal(t, "reader-1", reader.User())

	for _, name := range []string{"", ">", "a.b", "a b", "-a", "a-", "A", "x*"} {
		p := natsauth.Principal{Kind: natsauth.KindSubscriber, Name: name}
		require.ErrorIs(t, p.Validate(), natsauth.ErrInvalidPrincipal, name)
	}
}
