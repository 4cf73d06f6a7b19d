package cli

import (
	"testing"

	natsgo "github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
)

func TestCellMapIsShownAndChanged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	report, err := natsauth.Init(dir, natsauth.Options{})
	require.NoError(t, err)
	server := natstest.Start(t, natsd.Options{ConfigFile: report.ConfigFile, StoreDir: t.TempDir()})
	key, err := natsgo.NkeyOptionFromSeed(natsauth.SeedFile(dir, natsauth.PrincipalState))
	require.NoError(t, err)
	state := natstest.JetStream(t, server, key, natsgo.CustomInboxPrefix(natsauth.InboxPrefix(natsauth.PrincipalState)))
	require.NoError(t, topology.Ensure(natstest.Context(t), state, "local", topology.Options{StorageBytes: 1 << 30}))
	cells := func(want int, args ...string) (stdout, stderr string) {
		t.Helper()
		flags := []string{
			"--nats-url", server.ClientURL(), "--nats-seed-file", natsauth.SeedFile(dir, natsauth.PrincipalOperator), "cells",
		}
		code, stdout, stderr := run(t, append(flags, args...)...)
		require.Equal(t, want, code, "%v: %s", args, stderr)
		return stdout, stderr
	}
	_, stderr := cells(0, "list")
	require.Equal(t, "nothing found\n", stderr)
	_, stderr = cells(0, "add", "gitlab", "--url", "https://gitlab.example.org")
	require.Equal(t, "cell gitlab: the cell map is changed\n", stderr)
	_, stderr = cells(0, "add", "gitlab", "--url", "https://gitlab.example.org")
	require.Equal(t, "cell gitlab: the cell map is like that already\n", stderr)
	cells(0, "add", "eu-2", "--url", "http://10.0.0.2:8094", "--maintenance")
	cells(0, "assign", "7", "--to", "eu-2")
	cells(0, "assign", "8", "--to", "eu-2")
	cells(0, "legacy", "gitlab")
	stdout, _ := cells(0, "list")
	require.Equal(t, `NAME     STATE         URL                          KEYS   ORGANIZATIONS   LEGACY
eu-2     maintenance   http://10.0.0.2:8094         0      7, 8            
gitlab   active        https://gitlab.example.org   0                      yes
`, stdout)
	cells(0, "assign", "7")
	cells(0, "legacy", "--none")
	cells(0, "remove", "gitlab")
	stdout, _ = cells(0, "list", "-o", "json")
	require.JSONEq(t, `[{
		"name": "eu-2", "url": "http://10.0.0.2:8094", "state": "maintenance", "legacy": false, "key_ids": [],
		"organization_ids": [8]
	}]`, stdout)

	for _, wrong := range []struct {
		args []string
		want string
	}{
		{[]string{"add", "a.b", "--url", "http://a"}, "a.b"},
		{[]string{"add", "a", "--url", "ftp://a"}, `"ftp://a" is not http or https`},
		{[]string{"add", "a"}, "url"},
		{[]string{"assign", "acme", "--to", "eu-2"}, `organization "acme" is not an id`},
		{[]string{"assign", "7", "--to", "a.b"}, "--to"},
		{[]string{"legacy"}, "name a cell, or set --none"},
		{[]string{"legacy", "a", "--none"}, "name a cell, or set --none"},
	} {
		_, stderr := cells(2, wrong.args...)
		require.Contains(t, stderr, wrong.want)
	}
	_, stderr = cells(4, "--cells-seed-file", natsauth.SeedFile(dir, natsauth.PrincipalDeploys), "list")
	require.Contains(t, stderr, "--cells-seed-file must name the key of the cells")
}
