package deployment_test

import (
	"cmp"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/tools/pgroles"
)

type composeFile struct {
	Services map[string]composeService
	Volumes  map[string]any
}

type composeService struct {
	Image       string
	Hostname    string
	Container   string `yaml:"container_name"`
	User        string
	Command     []string
	Restart     string
	Profiles    []string
	Environment map[string]string
	Volumes     []string
	Ports       []string
	Healthcheck struct{ Test []string }
	DependsOn   map[string]struct{ Restart bool } `yaml:"depends_on"`
	PullPolicy  string                            `yaml:"pull_policy"`
	NetworkMode string                            `yaml:"network_mode"`
	Networks    []string
	Build       struct{ Args map[string]string }
	Logging     struct{ Options map[string]string }
	Deploy      struct {
		Resources struct{ Limits struct{ Memory, CPUs string } }
	}
}

// mounts returns the folder in the container of each named volume.
func (s composeService) mounts() map[string]string {
	folders := map[string]string{}
	for _, volume := range s.Volumes {
		source, target, _ := strings.Cut(volume, ":")
		if !strings.ContainsAny(source, "./$") {
			folders[source], _, _ = strings.Cut(target, ":")
		}
	}
	return folders
}

func TestEveryServiceIsInCompose(t *testing.T) {
	t.Parallel()
	compose := document[composeFile](t, "docker-compose.yml")
	for _, name := range services(t) {
		s, ok := compose.Services[name]
		require.True(t, ok, "%s is missing in docker-compose.yml", name)
		require.Equal(t, "lockstep/"+name+":${LOCKSTEP_VERSION:-latest}", s.Image)
		require.Equal(t, []string{"CMD", "/program", "--check-ready"}, s.Healthcheck.Test, name)
		require.Equal(t, "unless-stopped", s.Restart, name)
		require.Equal(t, "65532:65532", s.User, name)
		require.Equal(t, name, s.Build.Args["PROGRAM"])
		requireSettings(t, name, s.Environment)
		requireComplete(t, name, s.Environment, "/data/", "/kubeconfig")
	}
}

func TestContainersAreBoundedAndPullOnlyWhatIsPublished(t *testing.T) {
	t.Parallel()
	for name, s := range document[composeFile](t, "docker-compose.yml").Services {
		require.NotEmpty(t, s.Logging.Options["max-size"], name)
		require.NotEmpty(t, s.Logging.Options["max-file"], name)
		if strings.HasPrefix(s.Image, "lockstep/") {
			require.Equal(t, "never", s.PullPolicy, name)
			continue // libs/service bounds Go's memory by the container's limit
		}
		if slices.Contains([]string{"nats", "otel-collector", "prometheus", "grafana"}, name) {
			require.NotEmpty(t, s.Environment["GOMEMLIMIT"], name)
		}
	}
}

func TestPasswordsAreInFilesOnly(t *testing.T) {
	t.Parallel()
	compose := document[composeFile](t, "docker-compose.yml")
	for name, s := range compose.Services {
		for variable, value := range s.Environment {
			if strings.Contains(variable, "PASSWORD") {
				require.True(t, strings.HasSuffix(variable, "_FILE"), "%s: %s", name, variable)
			}
			require.NotContains(t, value, "PASSWORD", "%s: %s", name, variable)
		}
	}
}

func TestEachServiceHasItsOwnRoleOfPostgreSQL(t *testing.T) {
	t.Parallel()
	compose := document[composeFile](t, "docker-compose.yml")
	database := compose.Services["postgres"].Environment["POSTGRES_DB"]
	init := compose.Services["postgres-init"]
	dir := init.Command[slices.Index(init.Command, "--dir")+1]
	// The administrator has no password, so only those in the container of PostgreSQL are administrators.
	require.Contains(t, init.Command, "--remove-own-password")
	require.Equal(t, "service:postgres", init.NetworkMode)
	for name, s := range compose.Services {
		address, stores := s.Environment["LOCKSTEP_DATABASE_URL"]
		require.Equal(t, slices.Contains(pgroles.Services(), name), stores, name)
		if !stores {
			continue
		}
		u, err := url.Parse(address)
		require.NoError(t, err)
		require.Equal(t, pgroles.Role(database, name), u.User.String())
		require.Equal(t, "/"+database, u.Path)
		require.Contains(t, s.DependsOn, "postgres-init")
		volume := "postgres-" + name
		require.Equal(t, dir+"/"+name, init.mounts()[volume])
		require.Equal(t, s.mounts()[volume]+"/password", s.Environment["LOCKSTEP_DATABASE_PASSWORD_FILE"])
	}
}

// TestContainersReachOnlyTheirPeers lists the containers that must talk to each other. Others share no network, except
// those that serve or observe the same one.
func TestContainersReachOnlyTheirPeers(t *testing.T) {
	t.Parallel()
	compose := document[composeFile](t, "docker-compose.yml")
	shared := func(a, b string) bool {
		return slices.ContainsFunc(compose.Services[a].Networks, func(network string) bool {
			return slices.Contains(compose.Services[b].Networks, network)
		})
	}
	programs := append(services(t), relayFront)
	dials := map[string][]string{
		"state": {"nats", "postgres", "otel-collector"}, "deploys": {"nats", "postgres", "otel-collector"},
		"runners": {"nats", "postgres", "state", "otel-collector"}, "router": {"nats", "runners", "otel-collector"},
		"admission": {"nats", "postgres", "otel-collector"}, "gateway": {"nats", "state", "otel-collector"},
		"relay": {"nats", relayFront, "otel-collector"}, relayFront: {"nats", "relay", "otel-collector"},
		"relay-agent": {"relay", "otel-collector"},
		"watcher":     {"nats", "otel-collector"}, "dispatcher": {"nats", "otel-collector"},
		"cli":        {"nats", "state", "deploys", "runners", "admission", "relay", relayFront},
		"prometheus": append([]string{"otel-collector"}, programs...), "grafana": {"prometheus"},
	}
	for from, all := range dials {
		for _, to := range all {
			require.True(t, shared(from, to), "%s does not reach %s", from, to)
		}
	}
	for _, a := range append([]string{"postgres"}, programs...) {
		for name := range compose.Services {
			if name == a || name == "prometheus" && a != "postgres" || !shared(a, name) {
				continue
			}
			serves := slices.Contains(dials[a], name) || slices.Contains(dials[name], a)
			require.True(t, serves, "%s and %s reach each other", a, name)
		}
	}
}

func TestNATSRestartsWithNewConfiguration(t *testing.T) {
	t.Parallel()
	compose := document[composeFile](t, "docker-compose.yml")
	require.True(t, compose.Services["nats"].DependsOn["nats-init"].Restart)
}

// TestNATSMonitoringIsLocal is about a port that asks for no key.
func TestNATSMonitoringIsLocal(t *testing.T) {
	t.Parallel()
	command := document[composeFile](t, "docker-compose.yml").Services["nats-init"].Command
	require.Equal(t, "127.0.0.1", command[slices.Index(command, "--monitor-host")+1])
}

// TestNATSListensForWebSocketsWithOneSetting is about agents behind HTTP proxies.
func TestNATSListensForWebSocketsWithOneSetting(t *testing.T) {
	t.Parallel()
	compose := document[composeFile](t, "docker-compose.yml")
	const port, off = "${LOCKSTEP_NATS_WEBSOCKET_PORT:-8443}", "${LOCKSTEP_NATS_WEBSOCKET_PORT:-0}"
	initialize := compose.Services["nats-init"].Command
	require.Equal(t, off, initialize[slices.Index(initialize, "--websocket-port")+1])
	require.Equal(t, []string{"127.0.0.1:" + off + ":" + port}, compose.Services["nats"].Ports)
	require.Contains(t, string(content(t, "docs/operations.md")), "LOCKSTEP_NATS_WEBSOCKET_PORT=")
}

func TestContainersMountOnlyTheirOwnKeys(t *testing.T) {
	t.Parallel()
	compose := document[composeFile](t, "docker-compose.yml")
	created := map[string]string{} // volume of each folder that an init container writes
	for _, name := range []string{
		"nats-init", "state-init", "runners-init", "admission-init", "gateway-init", "relay-init", "postgres-init",
	} {
		for volume, folder := range compose.Services[name].mounts() {
			require.NotContains(t, created, folder)
			created[folder] = volume
		}
	}
	programs := map[string]string{natsauth.PrincipalOperator: "cli"}
	mounted := map[string][]string{ // by each container, besides those that write the keys
		created["/data/nats"]:      {"nats"},
		created["/data/state"]:     {"state"},
		created["/data/runners"]:   {"runners"},
		created["/data/admission"]: {"admission"},
		created["/data/gateway"]:   {"gateway"},
		created["/data/relay"]:     {"relay", relayFront},
		created["/data/admin"]:     {"cli"},
		created["/data/relay-ca"]:  {"cli", "relay-agent"}, // has no key
		created["/data/jetstream"]: {"nats"},
	}
	for _, service := range pgroles.Services() {
		mounted[created["/data/postgres/"+service]] = []string{service}
	}
	for key, holder := range natsauth.KeyHolders(topology.Cell("local")) {
		file := natsauth.SeedFile("/data/nats", key)
		program := cmp.Or(programs[holder], holder)
		require.Contains(t, created, filepath.Dir(file), "%s has no volume", file)
		mounted[created[filepath.Dir(file)]] = []string{program, program + "-front"}
		if holder == key && holder != natsauth.PrincipalState {
			require.Contains(t, slices.Collect(maps.Values(compose.Services[program].Environment)), file)
		}
	}
	require.Len(t, mounted, len(created))
	for name, s := range compose.Services {
		if strings.HasSuffix(name, "-init") {
			continue
		}
		for volume, folder := range s.mounts() {
			if programs, ok := mounted[volume]; ok {
				require.Contains(t, programs, name, "%s mounts the volume %s", name, volume)
				if folder != "/data/postgres" { // only the password of this service is there
					require.Equal(t, volume, created[folder], "%s mounts the volume %s elsewhere", name, volume)
				}
			}
		}
	}
}

func TestContainersAreLocalAndLimited(t *testing.T) {
	t.Parallel()
	compose := document[composeFile](t, "docker-compose.yml")
	for name, s := range compose.Services {
		require.NotEmpty(t, s.Deploy.Resources.Limits.Memory, name)
		require.NotEmpty(t, s.Deploy.Resources.Limits.CPUs, name)
		require.False(t, strings.HasSuffix(s.Image, ":latest") || !strings.Contains(s.Image, ":"), "%s: %s names no version",
			name, s.Image)
		for _, port := range s.Ports {
			require.True(t, strings.HasPrefix(port, "127.0.0.1:"), "%s publishes %s on all interfaces", name, port)
		}
		for _, volume := range s.Volumes {
			source, _, _ := strings.Cut(volume, ":")
			if !strings.ContainsAny(source, "./$") {
				require.Contains(t, compose.Volumes, source, name)
			}
		}
		for other := range s.DependsOn {
			require.Contains(t, compose.Services, other, name)
		}
	}
}
