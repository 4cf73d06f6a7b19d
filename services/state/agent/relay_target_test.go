package agent_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/agent"
)

func configured(targets ...agent.RelayTarget) agent.Configuration {
	return agent.Settings{RelayTargets: &targets}.Configuration()
}

func TestValidRelayTargets(t *testing.T) {
	t.Parallel()
	many := make([]agent.RelayTarget, 100)
	for i := range many {
		many[i] = agent.RelayTarget{Name: fmt.Sprint("t", i), Address: "shop.apps.svc:80"}
	}
	for _, targets := range [][]agent.RelayTarget{
		nil,
		{},
		many,
		{
			{Name: "a", Address: "a:1"},
			{Name: strings.Repeat("a", 63), Address: "xn--bcher-kva.example:65535"},
			{Name: "0-9", Address: "10.0.0.7:80"},
			{Name: "six", Address: "[fd00::7]:80"},
		},
	} {
		c := configured(targets...)
		require.NoError(t, c.Validate())
		require.Len(t, c.RelayTargets, len(targets))
	}
	require.Nil(t, configured().RelayTargets)
	shop, db := agent.RelayTarget{Name: "shop", Address: "shop:80"}, agent.RelayTarget{Name: "db", Address: "db:1"}
	require.True(t, configured(shop, db).Equal(configured(db, shop)), "the order does not matter")
	require.False(t, configured(shop, db).Equal(configured(shop)))
	require.True(t, configured().Equal(agent.DefaultConfiguration()))
	given := []agent.RelayTarget{shop, db}
	configured(given...)
	require.Equal(t, []agent.RelayTarget{shop, db}, given, "the input is not modified")
}

func TestInvalidRelayTargets(t *testing.T) {
	t.Parallel()
	good := "shop.apps.svc:80"
	for want, target := range map[string]agent.RelayTarget{
		"is reserved for the agent's Kubernetes API: choose another name": {Name: "kubernetes", Address: good},
		`the name "" is not 1 to 63`:                                      {Name: "", Address: good},
		`the name "Shop" is not`:                                          {Name: "Shop", Address: good},
		`the name "-a" is not`:                                            {Name: "-a", Address: good},
		`the name "a." is not`:                                            {Name: "a.", Address: good},
		`the name "` + strings.Repeat("a", 64) + `" is not`:               {Name: strings.Repeat("a", 64), Address: good},
		`the address "" is not host:port`:                                 {Name: "shop"},
		`the address "shop" is not host:port`:                             {Name: "shop", Address: "shop"},
		`the address "fd00::7:80" is not host:port`:                       {Name: "shop", Address: "fd00::7:80"},
		`the address "shop:" has no port`:                                 {Name: "shop", Address: "shop:"},
		`the address "shop:0" has no port`:                                {Name: "shop", Address: "shop:0"},
		`the address "shop:080" has no port`:                              {Name: "shop", Address: "shop:080"},
		`the address "shop:65536" has no port`:                            {Name: "shop", Address: "shop:65536"},
		`the address "shop:http" has no port`:                             {Name: "shop", Address: "shop:http"},
		`the address ":80" has a host that is neither`:                    {Name: "shop", Address: ":80"},
		`the address "Shop:80" has a host that is neither`:                {Name: "shop", Address: "Shop:80"},
		`the address "a b:80" has a host that is neither`:                 {Name: "shop", Address: "a b:80"},
		`the address "*:80" has a host that is neither`:                   {Name: "shop", Address: "*:80"},
		`the address "a..b:80" has a host that is neither`:                {Name: "shop", Address: "a..b:80"},
		`the address "127.1:80" has a host that is neither`:               {Name: "shop", Address: "127.1:80"},
		`the address "010.0.0.7:80" has a host that is neither`:           {Name: "shop", Address: "010.0.0.7:80"},
		`the address "[fe80::1%eth0]:80" has a zone`:                      {Name: "shop", Address: "[fe80::1%eth0]:80"},
		`the address "[FD00::0007]:80" must be written as [fd00::7]:80`:   {Name: "shop", Address: "[FD00::0007]:80"},
	} {
		err := configured(target).Validate()
		require.True(t, fault.Is(err, errcode.InvalidArgument), want)
		require.Len(t, fault.From(err).Details, 1, want)
		path := "relay_targets." + target.Name
		if strings.HasPrefix(want, "the name") {
			path = "relay_targets"
		}
		require.Contains(t, fault.From(err).Details[path], want)
	}
	require.Contains(
		t,
		configured(agent.RelayTarget{Name: "a", Address: strings.Repeat("a", 254) + ":80"}).Validate().Error(),
		"neither a lower-case DNS name",
	)
	twice := configured(
		agent.RelayTarget{Name: "a", Address: "a:1"},
		agent.RelayTarget{Name: "b", Address: "b"},
		agent.RelayTarget{Name: "a", Address: "a:2"},
	)
	require.Equal(t, map[string]string{
		"relay_targets.a": "is repeated",
		"relay_targets.b": `the address "b" is not host:port, such as shop.apps.svc:80 or [fd00::7]:5432`,
	}, fault.From(twice.Validate()).Details)
	err := configured(make([]agent.RelayTarget, 101)...).Validate()
	require.Equal(t, map[string]string{"relay_targets": "has 101 targets, the limit is 100"}, fault.From(err).Details)
}
