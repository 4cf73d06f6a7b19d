package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
	"lockstep.internal/tools/testkit/port"
)

func TestMissingPermissionOfNATSIsReportedAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	report, err := natsauth.Init(dir, natsauth.Options{})
	require.NoError(t, err)
	server := natstest.Start(t, natsd.Options{ConfigFile: report.ConfigFile})
	for _, command := range [][]string{
		{"events", "tail", "observed.>"}, {"replay", "observed.>"}, {"dead", "list"},
	} {
		flags := []string{
			"--nats-url", server.ClientURL(), "--nats-seed-file", natsauth.SeedFile(dir, natsauth.PrincipalDeploys),
		}
		code, stdout, stderr := run(t, append(flags, command...)...)
		require.Equal(t, 4, code, stderr)
		require.Empty(t, stdout)
		require.Regexp(t, `^lockstep: NATS denied (publish|subscription) of \S+: --nats-seed-file must name the key of the `+
			"operator\n$", stderr)
	}
}

// TestOtherCellsOfTheMapHaveKeys repeats the run without the flag: it is remembered.
func TestOtherCellsOfTheMapHaveKeys(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, flags := range [][]string{{"--map-cells", "two, three"}, nil} {
		code, _, stderr := run(t, append([]string{"nats", "init", "--dir", dir}, flags...)...)
		require.Zero(t, code, stderr)
		for _, cell := range []topology.Cell{"two", "three"} {
			require.FileExists(t, natsauth.SeedFile(dir, natsauth.CellWriter(cell).Name))
		}
		config, err := os.ReadFile(natsauth.ConfigFile(dir))
		require.NoError(t, err)
		require.Contains(t, string(config), "$KV.CELLS.cell.three")
	}
	code, _, stderr := run(t, "nats", "init", "--dir", dir, "--map-cells", "local")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, `cell "local" of the map is the cell of this server`)
}

func TestUnreachableNATSIsReportedAtOnce(t *testing.T) {
	t.Parallel()
	held, err := port.Hold()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, held.Release()) })
	url := fmt.Sprintf("nats://127.0.0.1:%d", held.Number())
	for _, command := range [][]string{
		{"events", "tail"}, {"replay", "observed.>"}, {"dead", "list"}, {"replay", "observed.>", "--through", "deploys"},
	} {
		began := time.Now()
		code, stdout, stderr := run(t, append([]string{"--nats-url", url}, command...)...)
		require.Less(t, time.Since(began), connectTimeout, "it did not wait")
		require.Equal(t, 13, code, stderr)
		require.Empty(t, stdout)
		require.Equal(t, "lockstep: cannot reach NATS at "+url+": no program listens there\n", stderr)
	}
}

func TestUnknownKeyOfNATSIsReportedAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	seedOf := func(name string) (file, public string) {
		pair, err := nkeys.CreateUser()
		require.NoError(t, err)
		seed, err := pair.Seed()
		require.NoError(t, err)
		file = filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, seed, 0o600))
		public, err = pair.PublicKey()
		require.NoError(t, err)
		return file, public
	}
	_, known := seedOf("known")
	unknown, key := seedOf("unknown")
	config := filepath.Join(dir, "nats-server.conf")
	require.NoError(t, os.WriteFile(config, []byte(`authorization { users: [{nkey: "`+known+`"}] }`), 0o600))
	server := natstest.Start(t, natsd.Options{ConfigFile: config})
	code, stdout, stderr := run(t, "--nats-url", server.ClientURL(), "--nats-seed-file", unknown, "events", "tail")
	require.Equal(t, 3, code, stderr)
	require.Empty(t, stdout)
	require.Equal(t, "lockstep: NATS refused the key: the configuration of the server does not have the key "+key+
		": run lockstep nats init and restart NATS\n", stderr)
}

func TestTailOfUnknownNamesFails(t *testing.T) {
	t.Parallel()
	server := natstest.Server(t)
	for want, arguments := range map[string][]string{
		`subject "nope.>" must begin with one of`:                                  {"nope.>"},
		`subject "workspace" is only the beginning of subjects: use "workspace.>"`: {"workspace"},
		`--type "state_chnged": no event has such a type`:                          {"--type", "state_chnged"},
		"no server is configured":                                                  {"--workspace", "mine"},
		`subject "directory.user.1": the directory is for services only`:           {"directory.user.1"},
	} {
		code, _, stderr := run(t, append([]string{"--nats-url", server.ClientURL(), "events", "tail"}, arguments...)...)
		require.Equal(t, 2, code, stderr)
		require.Contains(t, stderr, want)
	}
	_, flags := newFakeState(t, &storedWorkspaces{})
	var out, notes output
	flags = append(flags, "--nats-url", server.ClientURL(), "events", "tail", "--workspace", "mine")
	require.Equal(t, 5, Run(t.Context(), flags, &out, &notes, "test"))
	require.Equal(t, "lockstep: workspace \"mine\" does not exist\n", notes.String())
}
