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

func newTable(t *testing.T, patterns ...string) *targets.Table {
	t.Helper()
	allowed, err := targets.ParseAllowed(patterns, "ws-")
	require.NoError(t, err)
	return targets.NewTable(allowed)
}

// findString returns the address of a target, or the text of the error.
func findString(t *testing.T, table *targets.Table, name string) string {
	t.Helper()
	address, release, err := table.Use(name, nil)
	if err != nil {
		return err.Error()
	}
	release()
	return address.String()
}

func TestTargetMustBeConfiguredAndAllowed(t *testing.T) {
	t.Parallel()
	table := newTable(t, "*.*.svc:*")
	require.Equal(t, "the agent has not received its configuration yet", findString(t, table, "web"))
	require.Equal(t, targets.Summary{}, table.Summary())
	require.True(t, table.AddSource().Update(parse(t, `{"config_revision":3,"relay_targets":[
		{"name":"web","address":"web.apps.svc:80"},{"name":"metadata","address":"169.254.169.254:80"}]}`)))
	require.Equal(t, "web.apps.svc:80", findString(t, table, "web"))
	require.Equal(t, `the agent's configuration (revision 3) has no target "db"`, findString(t, table, "db"))
	const forbidden = `address 169.254.169.254:80 of target "metadata" is not in the agent's targets.allowed_addresses`
	require.Equal(t, forbidden, findString(t, table, "metadata"))
	want := targets.Summary{Revision: 3, Targets: 2, Forbidden: []string{"metadata"}}
	require.Equal(t, want, table.Summary())
}

func TestHighestRevisionOfConnectedRelaysIsUsed(t *testing.T) {
	t.Parallel()
	table := newTable(t, "*:*")
	revision := func(number string) targets.Configuration {
		return parse(t, `{"config_revision":`+number+`,"relay_targets":[{"name":"web","address":"web:`+number+`"}]}`)
	}
	one, two, three := table.AddSource(), table.AddSource(), table.AddSource()
	one.Remove() // before its first update
	require.True(t, one.Update(revision("7")))
	require.False(t, two.Update(revision("6")), "older revision")
	require.Equal(t, "web:7", findString(t, table, "web"))
	require.True(t, two.Update(revision("8")))
	require.Equal(t, "web:8", findString(t, table, "web"))
	two.Remove()
	require.Equal(t, "web:7", findString(t, table, "web"), "revision of the remaining relay")
	one.Remove()
	require.Equal(t, "web:7", findString(t, table, "web"), "the last configuration is kept")
	require.True(t, three.Update(revision("2")), "the control plane was restored from a backup")
	require.Equal(t, "web:2", findString(t, table, "web"))
	require.True(t, three.Update(parse(t, `{"config_revision":2}`)), "same revision, different content")
	require.Contains(t, findString(t, table, "web"), "no target")
}

// sources are two relays that send configurations to a table.
type sources struct {
	t        *testing.T
	one, two *targets.Source
}

func (s *sources) update(source *targets.Source, revision, list string) {
	s.t.Helper()
	source.Update(parse(s.t, `{"config_revision":`+revision+`,"relay_targets":[`+list+`]}`))
}

func TestUseIsNotifiedOfChanges(t *testing.T) {
	t.Parallel()
	const same = `{"name":"same","address":"same.svc:1"}`
	const web = `{"name":"web","address":"web.svc:80"},` + same
	for name, c := range map[string]struct {
		change     func(s *sources)
		wantReason string
	}{
		"unchanged": {func(s *sources) { s.update(s.one, "4", web) }, ""},
		"removed": {
			func(s *sources) { s.update(s.one, "4", same) },
			`the agent's configuration (revision 4) has no target "web"`,
		},
		"moved": {
			func(s *sources) { s.update(s.one, "4", `{"name":"web","address":"web.svc:81"},`+same) },
			`the address of target "web" changed to web.svc:81 (was web.svc:80) in configuration revision 4`,
		},
		"not allowed": {
			func(s *sources) { s.update(s.one, "4", `{"name":"web","address":"10.0.0.1:80"},`+same) },
			`address 10.0.0.1:80 of target "web" is not in the agent's targets.allowed_addresses`,
		},
		"older revision": {func(s *sources) { s.update(s.two, "2", same) }, ""},
		"older relay catches up": {func(s *sources) {
			s.update(s.two, "2", same)
			s.one.Remove()
			s.update(s.two, "3", web)
		}, ""},
		"control plane restored from a backup": {func(s *sources) {
			s.one.Remove()
			s.update(s.two, "2", same)
		}, `the agent's configuration (revision 2) has no target "web"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			table := newTable(t, "*.svc:*")
			s := &sources{t: t, one: table.AddSource(), two: table.AddSource()}
			s.update(s.one, "3", web)
			notified := map[string][]string{}
			use := func(name, id string) (release func()) {
				_, release, err := table.Use(name, func(reason error) { notified[id] = append(notified[id], reason.Error()) })
				require.NoError(t, err)
				return release
			}
			use("web", "one")
			release := use("web", "released")
			use("same", "same")
			release()
			c.change(s)
			s.update(s.one, "9", same)
			s.update(s.one, "10", same)
			if c.wantReason == "" {
				c.wantReason = `the agent's configuration (revision 9) has no target "web"`
			}
			require.Equal(t, map[string][]string{"one": {c.wantReason}}, notified, "called once, and only for this use")
			_, _, err := table.Use("web", nil)
			require.Error(t, err)
		})
	}
}

func TestInvalidTargetsAreSkipped(t *testing.T) {
	t.Parallel()
	c := parse(t, `{"config_revision":1,"more":true,"relay_targets":[
		{"name":"kubernetes","address":"a:1"},{"name":"A","address":"a:1"},{"name":"db","address":"db"},
		{"name":"web","address":"a:1"},{"name":"web","address":"b:1"}]}`)
	require.Equal(t, map[string]targets.Address{"web": {Host: "a", Port: 1}}, c.Addresses)
	require.EqualError(t, errors.Join(c.Errors...), "\"kubernetes\": not a valid target name\n"+
		"\"A\": not a valid target name\ntarget db: \"db\" is not host:port\nduplicate target web")
	for _, line := range []string{``, `[]`, `{"config_revision":-1}`, `{"config_revision":"1"}`, `{`} {
		_, err := targets.Parse([]byte(line))
		require.Error(t, err, line)
	}
}

func FuzzConfiguration(f *testing.F) {
	f.Add([]byte(`{"config_revision":3,"relay_targets":[{"name":"web","address":"web.apps.svc:80"}]}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		c, err := targets.Parse(line)
		if err != nil {
			return
		}
		table := newTable(t)
		table.AddSource().Update(c)
		for name := range c.Addresses {
			_, _, err := table.Use(name, nil)
			require.Error(t, err, "nothing is allowed")
		}
	})
}
