package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/architecture"
	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/config"
	"lockstep.internal/services/state"
	"lockstep.internal/tools/pgroles"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
	"lockstep.internal/tools/testkit/pg"
	"lockstep.internal/tools/testkit/pgtest"
)

// TestBackupAndRestore runs the commands of docs/operations.md as they stand there. Between backup and restore
// the database, the streams and all keys are lost.
func TestBackupAndRestore(t *testing.T) {
	t.Parallel()
	m := &manual{t: t, dir: t.TempDir(), cli: fixture.NewCLI(t)}
	m.run("lockstep nats init --dir nats", "lockstep state init --dir state", "lockstep relay init --dir relay",
		"lockstep admission init --dir admission")
	database := pgtest.Server(t)
	url, err := database.CreateDatabase(t.Context(), "lockstep")
	require.NoError(t, err)
	m.cli = m.cli.With("DATABASE_URL=" + url)
	stop := m.startControlPlane(url)
	m.run("lockstep project create acme/platform/workspaces")
	projects := m.run("lockstep project list --output json")
	m.run("lockstep agent register my-cluster --project " + projectID(t, projects) + " --credentials credentials.json")
	require.NoError(t, os.WriteFile(filepath.Join(m.dir, "token"), []byte("of the workspace"), 0o600))
	m.run("lockstep ws create my-workspace --secret-env TOKEN=token")

	m.run(m.commands("Backup", 0)...)
	stop()
	require.NoError(t, database.Stop(t.Context()))
	seed, certificate := m.file("state/seal.seed"), m.file("relay/relay.crt")
	controllers := m.file("admission/controllers.seed")
	for _, lost := range []string{"nats", "state", "relay", "admission"} {
		require.NoError(t, os.RemoveAll(filepath.Join(m.dir, lost)))
	}
	for _, backup := range []string{"lockstep.dump", "lockstep-keys.tar.gz"} {
		info, err := os.Stat(filepath.Join(m.dir, backup))
		require.NoError(t, err)
		require.Zero(t, info.Mode()&0o077, "%s has secrets", backup)
	}

	database = pgtest.Server(t)
	url = strings.Replace(database.URL(), "/postgres?", "/lockstep?", 1)
	m.cli = m.cli.With("ADMIN_URL="+database.URL(), "DATABASE_URL="+url, host(database))
	m.run(m.commands("Restore", 0)...)
	require.Equal(t, seed, m.file("state/seal.seed"))
	require.Equal(t, certificate, m.file("relay/relay.crt"))
	require.Equal(t, controllers, m.file("admission/controllers.seed"))
	url, err = pgroles.URL(url, "state", strings.TrimSpace(m.file("postgres/state/password")))
	require.NoError(t, err)
	defer m.startControlPlane(url)()
	require.Contains(t, m.run("lockstep ws list"), "my-workspace")
	require.Eventually(t, func() bool {
		return strings.Contains(m.run("lockstep replay 'desired.>'"), "my-workspace")
	}, fixture.Timeout, fixture.PollInterval, "the desired state is published to the new streams")
}

// docker runs the programs of containers on this machine, since tests have no containers. The environment has the
// address of PostgreSQL, which trusts its own container.
const docker = `#!/bin/sh -eu
case "$*" in
"compose run --rm --no-deps -T "*" --entrypoint tar postgres "*) cat >/dev/null ;;
"compose run --rm -T postgres-init") lockstep postgres init --url "$DATABASE_URL" --dir postgres ;;
"compose exec -T postgres "*) shift 4; exec "$@" ;;
"compose up -d"*) ;;
*) echo "unknown: $*" >&2; exit 2 ;;
esac
`

// TestRestoreRunsCodeOfADumpAsItsService runs the commands of docs/operations.md with a dump that has a function of
// somebody who took deploys over.
func TestRestoreRunsCodeOfADumpAsItsService(t *testing.T) {
	t.Parallel()
	for _, section := range []string{"Restore", "Backup and restore with containers"} {
		t.Run(section, func(t *testing.T) {
			t.Parallel()
			m := &manual{t: t, dir: t.TempDir(), cli: fixture.NewCLI(t)}
			database := pgtest.Server(t)
			url, err := database.CreateDatabase(t.Context(), "lockstep")
			require.NoError(t, err)
			m.cli = m.cli.With("DATABASE_URL=" + url)
			m.run(`lockstep postgres init --url "$DATABASE_URL" --dir postgres`)
			deploys, err := pgroles.URL(url, "deploys", strings.TrimSpace(m.file("postgres/deploys/password")))
			require.NoError(t, err)
			pgtest.PlantCode(t, deploys, "deploys")
			m.run(`pg_dump --format=custom --file=lockstep.dump "$DATABASE_URL"`, "tar -czf lockstep-keys.tar.gz postgres")
			require.NoError(t, os.RemoveAll(filepath.Join(m.dir, "postgres")))

			database = pgtest.Server(t)
			block := 0
			if section == "Restore" {
				url = strings.Replace(database.URL(), "/postgres?", "/lockstep?", 1)
				m.cli = m.cli.With("ADMIN_URL="+database.URL(), host(database))
			} else {
				block = 1
				url, err = database.CreateDatabase(t.Context(), "lockstep")
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(filepath.Join(m.dir, "docker"), []byte(docker), 0o700))
				m.cli = m.cli.With("VOLUMES=-v keys:/data/keys", "PGHOST="+database.Socket(),
					fmt.Sprintf("PGPORT=%d", database.Port()))
			}
			m.cli = m.cli.With("DATABASE_URL=" + url)
			m.run(m.commands(section, block)...)
			pgtest.RequirePlantedCodeRanAs(t, url, "deploys", "lockstep_deploys")
		})
	}
}

// host is the variable HOST of the manual.
func host(database *pg.Server) string { return fmt.Sprintf("HOST=127.0.0.1:%d", database.Port()) }

// manual runs the commands of docs/operations.md in a folder.
type manual struct {
	t   *testing.T
	dir string
	cli fixture.CLI
}

// commands returns a block of commands of a section. The first one is 0.
func (m *manual) commands(section string, block int) []string {
	m.t.Helper()
	root, err := architecture.Root()
	require.NoError(m.t, err)
	page, err := os.ReadFile(filepath.Join(root, "docs", "operations.md"))
	require.NoError(m.t, err)
	_, text, found := strings.Cut(string(page), "\n## "+section+"\n")
	require.True(m.t, found, section)
	text, _, _ = strings.Cut(text, "\n## ")
	blocks := strings.Split(text, "```console\n")
	require.Greater(m.t, len(blocks), block+1, section)
	text, _, _ = strings.Cut(blocks[block+1], "```")
	var commands []string
	for line := range strings.Lines(text) {
		commands = append(commands, strings.TrimPrefix(strings.TrimSuffix(line, "\n"), "$ "))
	}
	return commands
}

// run runs commands in one shell and returns what they print.
func (m *manual) run(commands ...string) string {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), fixture.Timeout)
	defer cancel()
	var out, errs bytes.Buffer
	shell := exec.CommandContext(ctx, "bash", "-euc", strings.Join(commands, "\n"))
	shell.Dir, shell.Stdout, shell.Stderr = m.dir, &out, &errs
	shell.Env = append(slices.Clone(m.cli.Env), "PATH="+m.dir+":"+filepath.Dir(m.cli.Path)+":"+os.Getenv("PATH"))
	require.NoError(m.t, shell.Run(), "%s: %s", commands, &errs)
	return out.String()
}

func (m *manual) file(name string) string {
	m.t.Helper()
	raw, err := os.ReadFile(filepath.Join(m.dir, name))
	require.NoError(m.t, err)
	return string(raw)
}

// startControlPlane starts NATS with empty streams, and the state service. The returned function stops both.
func (m *manual) startControlPlane(url string) (stop func()) {
	t := m.t
	t.Helper()
	nats := natstest.Start(t, natsd.Options{ConfigFile: filepath.Join(m.dir, "nats", "nats-server.conf")})
	cfg := state.DefaultConfig()
	cfg.Ops.Listen, cfg.API.Listen = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Telemetry.Out = t.Output()
	cfg.Database.URL, cfg.NATS.URL = config.URL(url), config.URL(nats.ClientURL())
	cfg.Agents.KeysDir = filepath.Join(m.dir, "nats")
	cfg.Secrets.SealSeedFile = config.SecretFile(filepath.Join(m.dir, "state", "seal.seed"))
	cfg.Secrets.DigestKeyFile = config.SecretFile(filepath.Join(m.dir, "state", "digest.key"))
	cfg.Bootstrap.AdminTokenFile = config.SecretFile(filepath.Join(m.dir, "state", "admin.token"))
	ready := make(chan map[string]string, 1)
	cfg.OnReady = func(addresses map[string]string) { ready <- addresses }
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- state.Main(ctx, cfg) }()
	stop = func() {
		cancel()
		require.NoError(t, <-ended)
		require.NoError(t, nats.Stop())
	}
	select {
	case addresses := <-ready:
		m.cli = m.cli.With(
			"LOCKSTEP_SERVER=http://"+addresses["api"], "LOCKSTEP_TOKEN_FILE=state/admin.token",
			"LOCKSTEP_NATS_URL="+nats.ClientURL(), "LOCKSTEP_NATS_SEED_FILE=nats/operator/operator.seed",
		)
	case err := <-ended:
		require.NoError(t, err)
		require.FailNow(t, "the state service stopped before it was ready")
	}
	return stop
}

// projectID returns the id of the only project.
func projectID(t *testing.T, output string) string {
	t.Helper()
	var list struct {
		Projects []struct {
			ID string `json:"id"`
		} `json:"projects"`
	}
	require.NoError(t, json.Unmarshal([]byte(output), &list))
	require.Len(t, list.Projects, 1)
	return list.Projects[0].ID
}
