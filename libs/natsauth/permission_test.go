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
					"lockstep.eu-1.observed.7.*.*.*",
					"lockstep.eu-1.observed.7.workload.*.*.*",
					"lockstep.eu-1.observed.7.resync",
					"lockstep.eu-1.observed.7.members",
					"lockstep.eu-1.observed.7.tick",
					"lockstep.eu-1.observed.7.rejected",
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
		"subscriber": {
			"local",
			natsauth.Principal{Kind: natsauth.KindSubscriber, Name: "reader", Filter: "lockstep.local.deploy.>"},
			jwt.Permissions{
				Pub: jwt.Permission{Allow: jwt.StringList{
					"$JS.API.CONSUMER.MSG.NEXT.DEPLOYS.subscriber-reader",
					"$JS.API.CONSUMER.INFO.DEPLOYS.subscriber-reader",
					"$JS.ACK.DEPLOYS.subscriber-reader.>",
				}},
				Sub: jwt.Permission{Allow: jwt.StringList{"_INBOX_reader.>"}},
			},
		},
		"subscriber of jobs": {
			"local",
			natsauth.Principal{Kind: natsauth.KindSubscriber, Name: "reader", Filter: "lockstep.local.job.17.>"},
			jwt.Permissions{
				Pub: jwt.Permission{Allow: jwt.StringList{
					"$JS.API.CONSUMER.MSG.NEXT.JOBS.subscriber-reader",
					"$JS.API.CONSUMER.INFO.JOBS.subscriber-reader",
					"$JS.ACK.JOBS.subscriber-reader.>",
				}},
				Sub: jwt.Permission{Allow: jwt.StringList{"_INBOX_reader.>"}},
			},
		},
		"subscriber of admission": {
			"local",
			natsauth.Principal{Kind: natsauth.KindSubscriber, Name: "reader", Filter: "lockstep.local.admission.17.>"},
			jwt.Permissions{
				Pub: jwt.Permission{Allow: jwt.StringList{
					"$JS.API.CONSUMER.MSG.NEXT.ADMISSION.subscriber-reader",
					"$JS.API.CONSUMER.INFO.ADMISSION.subscriber-reader",
					"$JS.ACK.ADMISSION.subscriber-reader.>",
				}},
				Sub: jwt.Permission{Allow: jwt.StringList{"_INBOX_reader.>"}},
			},
		},
		"subscriber without filter": {
			"local", natsauth.Principal{Kind: natsauth.KindSubscriber, Name: "reader"}, nothing,
		},
		"subscriber of another family": {
			"local",
			natsauth.Principal{Kind: natsauth.KindSubscriber, Name: "reader", Filter: "lockstep.local.directory.>"},
			nothing,
		},
		"listener of jobs": {
			"local",
			natsauth.Principal{Kind: natsauth.KindListener, Name: "reader", Filter: "lockstep.local.job.17.>"},
			jwt.Permissions{
				Pub: jwt.Permission{Deny: jwt.StringList{">"}},
				Sub: jwt.Permission{Allow: jwt.StringList{"lockstep.local.job.17.>"}},
			},
		},
		"listener": {
			"local",
			natsauth.Principal{Kind: natsauth.KindListener, Name: "reader", Filter: "lockstep.local.deploy.*.shop.>"},
			jwt.Permissions{
				Pub: jwt.Permission{Deny: jwt.StringList{">"}},
				Sub: jwt.Permission{Allow: jwt.StringList{"lockstep.local.deploy.*.shop.>"}},
			},
		},
		"listener without filter": {
			"local", natsauth.Principal{Kind: natsauth.KindListener, Name: "reader"}, nothing,
		},
		"listener to everything": {
			"local", natsauth.Principal{Kind: natsauth.KindListener, Name: "reader", Filter: ">"}, nothing,
		},
		"listener to another family": {
			"local",
			natsauth.Principal{Kind: natsauth.KindListener, Name: "reader", Filter: "lockstep.local.desired.>"},
			nothing,
		},
		"listener to another cell": {
			"local", natsauth.Principal{Kind: natsauth.KindListener, Name: "reader", Filter: "lockstep.other.deploy.>"}, nothing,
		},
		"subscription to an incomplete subject": {
			"local", natsauth.Principal{Kind: natsauth.KindListener, Name: "reader", Filter: "deploy.>"}, nothing,
		},
		"listener and a queue": {
			"local",
			natsauth.Principal{Kind: natsauth.KindListener, Name: "reader", Filter: "lockstep.local.deploy.> q"},
			nothing,
		},
		"subscriber without name": {
			"local", natsauth.Principal{Kind: natsauth.KindSubscriber, Filter: "lockstep.local.deploy.>"}, nothing,
		},
		"subscriber with a strange name": {
			"local", natsauth.Principal{Kind: natsauth.KindSubscriber, Name: "*", Filter: "lockstep.local.deploy.>"}, nothing,
		},
		"subscriber with a listener name": {
			"local",
			natsauth.Principal{Kind: natsauth.KindSubscriber, Name: "reader.live", Filter: "lockstep.local.deploy.>"},
			nothing,
		},
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

	listener := natsauth.Principal{Kind: natsauth.KindListener, Name: "reader-1", Filter: "lockstep.local.deploy.>"}
	require.NoError(t, listener.Validate())
	require.Equal(t, natsauth.AccountListeners, listener.Account())
	require.Equal(t, "reader-1.live", listener.User())
	name, listens := natsauth.ParseSubscriberUser(listener.User())
	require.Equal(t, "reader-1", name)
	require.True(t, listens)
	name, listens = natsauth.ParseSubscriberUser(reader.User())
	require.Equal(t, "reader-1", name)
	require.False(t, listens)

	for _, name := range []string{"", ">", "a.b", "a b", "-a", "a-", "A", "x*"} {
		p := natsauth.Principal{Kind: natsauth.KindSubscriber, Name: name}
		require.ErrorIs(t, p.Validate(), natsauth.ErrInvalidPrincipal, name)
	}
}
