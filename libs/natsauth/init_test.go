package natsauth_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
)

func readAll(t *testing.T, dir string) map[string]string {
	t.Helper()

	files := make(map[string]string)
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}

		content, err := os.ReadFile(path)
		files[path] = string(content)

		return err
	}))

	return files
}

func TestInitTwiceChangesNothing(t *testing.T) {
	t.Parallel()

	dir := filepath.Join(t.TempDir(), "nats", "conf")
	first, err := natsauth.Init(dir, natsauth.Options{})
	require.NoError(t, err)
	require.True(t, first.Changed())

	before := readAll(t, dir)
	require.Len(t, before, len(first.Files), "the report names every file")

	for _, f := range first.Files {
		require.Equal(t, natsauth.Created, f.Change)
		require.Contains(t, before, f.Path)

		if f.Path != first.ConfigFile {
			info, err := os.Stat(f.Path)
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o600), info.Mode(), f.Path)
		}
	}

	second, err := natsauth.Init(dir, natsauth.Options{})
	require.NoError(t, err)
	require.False(t, second.Changed())
	require.Equal(t, before, readAll(t, dir))
}

func TestInitUpdatesTheConfigAndKeepsKeys(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	_, err := natsauth.Init(dir, natsauth.Options{})
	require.NoError(t, err)
	before := readAll(t, dir)

	report, err := natsauth.Init(dir, natsauth.Options{
		ListenPort: 4333, SyncInterval: natsauth.SyncAlways, MonitorPort: 8222, MonitorHost: "127.0.0.1",
		ServerName: "nats-1", ListenHost: "0.0.0.0",
		Cluster:    &natsauth.Cluster{Name: "c", ListenPort: 6222, Routes: []string{"nats://nats-2:6222"}},
		Principals: []natsauth.StaticPrincipal{extra()},
	})
	require.NoError(t, err)

	changes := make(map[string]natsauth.Change)
	for _, f := range report.Files {
		changes[f.Path] = f.Change
	}

	require.Equal(t, natsauth.Updated, changes[report.ConfigFile])
	require.Equal(t, natsauth.Created, changes[natsauth.SeedFile(dir, "extra")])
	require.Equal(t, natsauth.Kept, changes[natsauth.SeedFile(dir, natsauth.PrincipalState)])

	after := readAll(t, dir)
	for path, content := range before {
		if path != report.ConfigFile {
			require.Equal(t, content, after[path])
		}
	}

	options, err := server.ProcessConfigFile(report.ConfigFile)
	require.NoError(t, err)
	require.Equal(t, 4333, options.Port)
	require.Equal(t, 8222, options.HTTPPort)
	require.Equal(t, "127.0.0.1", options.HTTPHost, "not where clients are")
	require.Equal(t, "nats-1", options.ServerName)
	require.True(t, options.SyncAlways)
	require.Equal(t, "c", options.Cluster.Name)
	require.Len(t, options.Routes, 1)
}

func TestInitWritesOneConfigurationPerServerOfACluster(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	options := natsauth.Options{ListenHost: "0.0.0.0", Cluster: &natsauth.Cluster{
		Name: "local", ListenHost: "0.0.0.0",
		TLS: &natsauth.TLS{CertFile: "c.pem", KeyFile: "k.pem", CAFile: "ca.pem", VerifyClients: true},
		Servers: []natsauth.ClusterServer{
			{Name: "nats-0", Host: "10.0.0.1", Port: 6222},
			{Name: "nats-1", Host: "nats-1.internal", Port: 6222},
			{Name: "nats-2", Host: "fd00::2", Port: 7222},
		},
	}}
	report, err := natsauth.Init(dir, options)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, "nats-0.conf"), report.ConfigFile)

	files := readAll(t, dir)
	require.Len(t, files, len(report.Files))

	common := func(name string) string {
		_, rest, _ := strings.Cut(files[filepath.Join(dir, name)], "\nauthorization {")

		return rest
	}
	require.NotEmpty(t, common("nats-0.conf"))
	require.Equal(t, common("nats-0.conf"), common("nats-1.conf"), "the same users and accounts")
	require.Equal(t, common("nats-0.conf"), common("nats-2.conf"), "the same users and accounts")

	last := files[filepath.Join(dir, "nats-2.conf")]
	require.Contains(t, last, `server_name: "nats-2"`)
	require.Contains(t, last, `listen: "0.0.0.0:7222"`)
	require.Contains(t, last, `routes: ["nats://10.0.0.1:6222", "nats://nats-1.internal:6222"]`)
	require.Contains(t, files[report.ConfigFile], `"nats://[fd00::2]:7222"`)

	report, err = natsauth.Init(dir, options)
	require.NoError(t, err)
	require.False(t, report.Changed())

	options.Cluster.Servers[2].Port = 6222
	report, err = natsauth.Init(dir, options)
	require.NoError(t, err)
	require.True(t, report.RestartNeeded())
}

func TestUpdatedConfigurationNeedsRestartOfServer(t *testing.T) {
	t.Parallel()

	dir, options := t.TempDir(), natsauth.Options{ListenPort: -1, StoreDir: t.TempDir()}
	report, err := natsauth.Init(dir, options)
	require.NoError(t, err)
	require.False(t, report.RestartNeeded(), "no server runs with it yet")

	configuration, err := server.ProcessConfigFile(report.ConfigFile)
	require.NoError(t, err)

	configuration.NoLog, configuration.NoSigs = true, true
	running, err := server.NewServer(configuration)
	require.NoError(t, err)
	running.Start()
	t.Cleanup(func() {
		running.Shutdown()
		running.WaitForShutdown()
	})
	require.True(t, running.ReadyForConnections(time.Minute))

	options.SyncInterval = natsauth.SyncAlways
	report, err = natsauth.Init(dir, options)
	require.NoError(t, err)
	require.True(t, report.RestartNeeded())

	require.NoError(t, os.Remove(natsauth.SeedFile(dir, natsauth.PrincipalDeploys)))
	report, err = natsauth.Init(dir, options)
	require.NoError(t, err)
	require.True(t, report.RestartNeeded())
	require.ErrorContains(t, running.Reload(), "not supported for AuthCallout")
}

func extra() natsauth.StaticPrincipal {
	return natsauth.StaticPrincipal{
		Name: "extra", Account: natsauth.AccountControl, Permissions: jwt.Permissions{
			Pub: jwt.Permission{Allow: jwt.StringList{"lockstep.local.deploy.>"}},
			Sub: jwt.Permission{Allow: jwt.StringList{`_INBOX_extra.>`}},
		},
	}
}

func TestConfigContainsNoSecretAndNoOwnPath(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	report, err := natsauth.Init(dir, natsauth.Options{SyncInterval: time.Minute})
	require.NoError(t, err)
	files := readAll(t, dir)
	config := files[report.ConfigFile]
	require.NotContains(t, config, dir)
	require.NotRegexp(t, `\bS[AUXNCO][A-Z2-7]{50,}`, config)

	for path, seed := range files {
		if path != report.ConfigFile {
			require.NotContains(t, config, strings.TrimSpace(seed))
		}
	}

	// The folder can be moved.
	moved := filepath.Join(t.TempDir(), "elsewhere.conf")
	require.NoError(t, os.WriteFile(moved, []byte(config), 0o600))
	options, err := server.ProcessConfigFile(moved)
	require.NoError(t, err)
	require.Equal(t, time.Minute, options.SyncInterval)
	require.Equal(t, "jetstream", options.StoreDir)
	require.Empty(t, options.JetStreamDomain)
}

func TestConcurrentInitAgreesOnKeys(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()

	var group sync.WaitGroup

	for range 8 {
		group.Go(func() {
			if _, err := natsauth.Init(dir, natsauth.Options{}); err != nil {
				t.Error(err)
			}
		})
	}

	group.Wait()

	report, err := natsauth.Init(dir, natsauth.Options{})
	require.NoError(t, err)
	require.False(t, report.Changed(), "the configuration contains the keys on disk")
}

func TestInitRejectsUnusableKeys(t *testing.T) {
	t.Parallel()

	for name, spoil := range map[string]func(t *testing.T, dir, path string){
		"no nkey seed": func(t *testing.T, _, path string) {
			t.Helper()
			require.NoError(t, os.WriteFile(path, []byte("garbage"), 0o600))
		},
		"holds a key for": func(t *testing.T, dir, path string) {
			t.Helper()
			other, err := os.ReadFile(natsauth.SeedFile(dir, "issuer"))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path, other, 0o600))
		},
		"chmod 600": func(t *testing.T, _, path string) {
			t.Helper()
			require.NoError(t, os.Chmod(path, 0o644))
		},
	} {
		dir := t.TempDir()
		_, err := natsauth.Init(dir, natsauth.Options{})
		require.NoError(t, err)
		spoil(t, dir, natsauth.SeedFile(dir, natsauth.PrincipalState))
		before := readAll(t, dir)

		_, err = natsauth.Init(dir, natsauth.Options{ListenPort: 1})
		require.ErrorIs(t, err, natsauth.ErrUnusableKey)
		require.ErrorContains(t, err, name)
		require.Equal(t, before, readAll(t, dir))
	}
}

func TestInitRejectsInvalidOptions(t *testing.T) {
	t.Parallel()

	open := extra()
	open.Permissions.Pub = jwt.Permission{}
	agents := extra()
	agents.Account = natsauth.AccountAgents
	unknown := extra()
	unknown.Account = "OTHER"
	taken := extra()
	taken.Name = "issuer"

	for want, options := range map[string]natsauth.Options{
		"cell":                   {Cell: "A.b"},
		"listen port":            {ListenPort: 70000},
		"monitor port":           {MonitorPort: -2},
		"sync interval":          {SyncInterval: -5},
		"certificate file":       {TLS: &natsauth.TLS{}},
		"only with a CA":         {TLS: &natsauth.TLS{CertFile: "c", KeyFile: "k", VerifyClients: true}},
		"line break":             {TLS: &natsauth.TLS{CertFile: "c\n", KeyFile: "k"}},
		"cluster without a name": {Cluster: &natsauth.Cluster{ListenPort: 1}},
		"cluster listen port":    {Cluster: &natsauth.Cluster{Name: "c"}},
		`server "a" is listed twice`: {Cluster: &natsauth.Cluster{Name: "c", Servers: []natsauth.ClusterServer{
			{Name: "a", Host: "a", Port: 1}, {Name: "a", Host: "b", Port: 1}, {Name: "c", Host: "c", Port: 1},
		}}},
		"survives the failure of none": {Cluster: &natsauth.Cluster{
			Name: "c", Servers: []natsauth.ClusterServer{{Name: "a", Host: "a", Port: 1}},
		}},
		"is not a host": {Cluster: &natsauth.Cluster{
			Name: "c", Servers: []natsauth.ClusterServer{{Name: "a", Host: "", Port: 1}},
		}},
		"is listed twice":              {Principals: []natsauth.StaticPrincipal{{Name: natsauth.PrincipalState}}},
		"not a DNS label":              {Principals: []natsauth.StaticPrincipal{{Name: "../x"}}},
		"allow everything":             {Principals: []natsauth.StaticPrincipal{open}},
		"come from the directory only": {Principals: []natsauth.StaticPrincipal{agents}},
		"unknown account":              {Principals: []natsauth.StaticPrincipal{unknown}},
		"a reserved name":              {Principals: []natsauth.StaticPrincipal{taken}},
	} {
		dir := t.TempDir()
		_, err := natsauth.Init(dir, options)
		require.ErrorIs(t, err, natsauth.ErrInvalidOptions, want)
		require.ErrorContains(t, err, want)
		require.Empty(t, readAll(t, dir))
	}
}

func TestInitMovesKeysToTheFoldersOfTheirPrograms(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	_, err := natsauth.Init(dir, natsauth.Options{})
	require.NoError(t, err)

	before := readAll(t, dir)
	programs := []string{
		natsauth.PrincipalDeploys, natsauth.PrincipalRunners, natsauth.PrincipalAdmission, natsauth.PrincipalGateway,
		natsauth.PrincipalRouter, natsauth.PrincipalRelay, natsauth.PrincipalOperator,
	}

	require.NoError(t, os.Rename(
		natsauth.SeedFile(dir, natsauth.PrincipalCells), filepath.Join(dir, "keys", natsauth.PrincipalCells+".seed")))

	for _, name := range programs {
		require.NoError(t, os.Rename(natsauth.SeedFile(dir, name), filepath.Join(dir, "keys", name+".seed")))
		require.NoError(t, os.Remove(filepath.Join(dir, name)))
	}

	report, err := natsauth.Init(dir, natsauth.Options{})
	require.NoError(t, err)
	require.False(t, report.RestartNeeded())
	require.Equal(t, before, readAll(t, dir))

	for _, name := range programs {
		require.Contains(t, report.Files, natsauth.File{Path: natsauth.SeedFile(dir, name), Change: natsauth.Moved})
	}

	again, err := natsauth.Init(dir, natsauth.Options{})
	require.NoError(t, err)
	require.False(t, again.Changed())
}
