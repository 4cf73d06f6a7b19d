package targets_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/agent/targets"
)

func parse(t *testing.T, line string) targets.Configuration {
	t.Helper()
	c, err := targets.Parse([]byte(line))
	require.NoError(t, err)
	return c
}

func newBook(t *testing.T, patterns ...string) *targets.Table {
	t.Helper()
	allowed, err := targets.ParseAllowed(patterns)
	require.NoError(t, err)
	return targets.NewTable(allowed)
}

func where(t *testing.T, b *targets.Table, name string) string {
	t.Helper()
	address, err := b.Find(name)
	if err != nil {
		return err.Error()
	}
	return address.String()
}

func TestATargetIsThereWhenBothSidesAgree(t *testing.T) {
	t.Parallel()
	b := newBook(t, "*.svc:*")
	require.Equal(t, "the agent has not been told its targets yet", where(t, b, "shop"))
	require.Equal(t, targets.Summary{}, b.Summary())
	require.True(t, b.Reporter().Report(parse(t, `{"config_revision":3,"relay_targets":[{"name":"shop","address":"shop.apps.svc:80"},{"name":"metadata","address":"169.254.169.254:80"}]}`)))
	require.Equal(t, "shop.apps.svc:80", where(t, b, "shop"))
	require.Equal(t, `the agent's configuration (revision 3) has no target "db"`, where(t, b, "db"))
	require.Equal(t, `target "metadata" is at 169.254.169.254:80, which targets.allowed_addresses of the agent in its cluster does not allow`, where(t, b, "metadata"))
	require.Equal(t, targets.Summary{Known: true, Revision: 3, Targets: 2, Forbidden: []string{"metadata"}}, b.Summary())
}

func TestTheHighestRevisionOfTheRelaysThatAreThereCounts(t *testing.T) {
	t.Parallel()
	b := newBook(t, "*:*")
	revision := func(number string) targets.Configuration {
		return parse(t, `{"config_revision":`+number+`,"relay_targets":[{"name":"shop","address":"shop:`+number+`"}]}`)
	}
	one, two, three := b.Reporter(), b.Reporter(), b.Reporter()
	one.Leave() // before it has reported
	require.True(t, one.Report(revision("7")))
	require.False(t, two.Report(revision("6")), "a relay that is behind")
	require.Equal(t, "shop:7", where(t, b, "shop"))
	require.True(t, two.Report(revision("8")))
	require.Equal(t, "shop:8", where(t, b, "shop"))
	two.Leave()
	require.Equal(t, "shop:7", where(t, b, "shop"), "who is there knows")
	one.Leave()
	require.Equal(t, "shop:7", where(t, b, "shop"), "nobody is there: the last one is kept")
	require.True(t, three.Report(revision("2")), "the control plane was restored from an older copy")
	require.Equal(t, "shop:2", where(t, b, "shop"))
	require.True(t, three.Report(parse(t, `{"config_revision":2}`)), "and the same number means something else now")
	require.Contains(t, where(t, b, "shop"), "no target")
}

func TestWhoUsesATargetIsToldWhenItChanges(t *testing.T) {
	t.Parallel()
	const same = `{"name":"same","address":"same.svc:1"}`
	for name, c := range map[string]struct {
		happens func(one, two *targets.Reporter, report func(r *targets.Reporter, revision string, targets string))
		over    string
	}{
		"the same": {func(one, _ *targets.Reporter, report func(*targets.Reporter, string, string)) {
			report(one, "4", `{"name":"shop","address":"shop.svc:80"},`+same)
		}, ""},
		"no more": {
			func(one, _ *targets.Reporter, report func(*targets.Reporter, string, string)) { report(one, "4", same) },
			`the agent's configuration (revision 4) has no target "shop"`,
		},
		"elsewhere": {func(one, _ *targets.Reporter, report func(*targets.Reporter, string, string)) {
			report(one, "4", `{"name":"shop","address":"shop.svc:81"},`+same)
		}, `target "shop" is at shop.svc:81 now (revision 4 of the agent's configuration), and not at shop.svc:80`},
		"not allowed": {func(one, _ *targets.Reporter, report func(*targets.Reporter, string, string)) {
			report(one, "4", `{"name":"shop","address":"10.0.0.1:80"},`+same)
		}, `target "shop" is at 10.0.0.1:80, which targets.allowed_addresses of the agent in its cluster does not allow`},
		"by a relay that is behind": {func(_, two *targets.Reporter, report func(*targets.Reporter, string, string)) { report(two, "2", same) }, ""},
		"who is behind is left, and catches up": {func(one, two *targets.Reporter, report func(*targets.Reporter, string, string)) {
			report(two, "2", same)
			one.Leave()
			report(two, "3", `{"name":"shop","address":"shop.svc:80"},`+same)
		}, ""},
		"the control plane was restored": {func(one, two *targets.Reporter, report func(*targets.Reporter, string, string)) {
			one.Leave()
			report(two, "2", same)
		}, `the agent's configuration (revision 2) has no target "shop"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBook(t, "*.svc:*")
			report := func(r *targets.Reporter, revision, list string) {
				r.Report(parse(t, `{"config_revision":`+revision+`,"relay_targets":[`+list+`]}`))
			}
			one, two := b.Reporter(), b.Reporter()
			report(one, "3", `{"name":"shop","address":"shop.svc:80"},`+same)
			told := map[string][]string{}
			use := func(name, as string) (release func()) {
				_, release, err := b.Use(name, func(why error) { told[as] = append(told[as], why.Error()) })
				require.NoError(t, err)
				return release
			}
			use("shop", "one")
			release := use("shop", "gone")
			use("same", "same")
			release()
			c.happens(one, two, report)
			report(one, "9", same)
			report(one, "10", same)
			if c.over == "" {
				c.over = `the agent's configuration (revision 9) has no target "shop"`
			}
			require.Equal(t, map[string][]string{"one": {c.over}}, told, "once, and nobody else")
			_, _, err := b.Use("shop", nil)
			require.Error(t, err)
		})
	}
}

func TestWhatCannotBeATargetIsLeftOut(t *testing.T) {
	t.Parallel()
	c := parse(t, `{"config_revision":1,"more":true,"relay_targets":[{"name":"kubernetes","address":"a:1"},{"name":"A","address":"a:1"},{"name":"db","address":"db"},{"name":"shop","address":"a:1"},{"name":"shop","address":"b:1"}]}`)
	require.Equal(t, map[string]targets.Address{"shop": {Host: "a", Port: 1}}, c.Addresses)
	require.EqualError(t, errors.Join(c.Faults...), "\"kubernetes\" is no name of a target\n\"A\" is no name of a target\ntarget db: \"db\" is not host:port\ntarget shop is there twice")
	for _, line := range []string{``, `[]`, `{"config_revision":-1}`, `{"config_revision":"1"}`, `{`} {
		_, err := targets.Parse([]byte(line))
		require.Error(t, err, line)
	}
}

func FuzzConfiguration(f *testing.F) {
	f.Add([]byte(`{"config_revision":3,"relay_targets":[{"name":"shop","address":"shop.apps.svc:80"}]}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		c, err := targets.Parse(line)
		if err != nil {
			return
		}
		b := newBook(t)
		b.Reporter().Report(c)
		for name := range c.Addresses {
			_, err := b.Find(name)
			require.Error(t, err, "nothing is allowed")
		}
	})
}
