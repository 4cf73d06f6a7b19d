package config_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// shared is inline in everything, like service.Config.
type shared struct {
	Timeout time.Duration `yaml:"timeout" help:"timeout of a request"`
}

func (s shared) Validate() []error {
	if s.Timeout < 0 {
		return []error{config.Invalid("timeout", "is negative")}
	}
	return nil
}

type server struct {
	URL   config.URL    `yaml:"url" help:"address of the server"`
	Token config.Secret `yaml:"token_file" help:"file with the token"`
	TLS   struct {
		On bool `yaml:"on" help:"use TLS"`
	} `yaml:"tls" help:"encryption"`
}

func (s *server) Validate() []error {
	if s.URL == "" {
		return []error{config.Invalid("url", "is empty")}
	}
	return nil
}

type everything struct {
	Shared shared            `yaml:",inline"`
	Server server            `yaml:"server" help:"the server"`
	Name   string            `yaml:"name" help:"a name"`
	Format string            `yaml:"format" oneof:"json|text" help:"a format"`
	Yes    bool              `yaml:"yes" help:"a switch"`
	Small  int8              `yaml:"small" help:"a small number"`
	Count  uint32            `yaml:"count" help:"a count"`
	Ratio  float64           `yaml:"ratio" help:"a ratio"`
	Size   config.Bytes      `yaml:"size" help:"a size"`
	List   []string          `yaml:"list" help:"some words"`
	Map    map[string]string `yaml:"map" help:"some pairs"`
	Net    netip.Prefix      `yaml:"net" help:"a network"`
	OnDone func()            `yaml:"-"`
}

func defaults() everything {
	return everything{
		Shared: shared{Timeout: 90 * time.Second},
		Server: server{URL: "nats://ada:sesame@a:4222"},
		Name:   "default", Format: "json", Size: 64 * config.KiB, List: []string{"a"}, Map: map[string]string{"k": "v"},
		Net: netip.MustParsePrefix("10.0.0.0/8"),
	}
}

func load(cfg any, args, environ []string) (string, []string, error) {
	var out bytes.Buffer
	warnings, err := config.Load(cfg, config.Program{Name: "program", About: "It does things.", Version: "v3"},
		config.Input{Args: args, Environ: environ, Stdout: &out})
	return out.String(), warnings, err
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestEveryLayerSetsEveryType(t *testing.T) {
	t.Parallel()
	token := writeFile(t, "sesame\r\n")
	values := []struct{ key, text, yaml string }{
		{"timeout", "1m30s", "1m30s"},
		{"server.url", "nats://b", "nats://b"},
		{"server.token_file", token, token},
		{"server.tls.on", "true", "true"},
		{"name", "x y", "x y"},
		{"format", "text", "text"},
		{"yes", "TRUE", "true"},
		{"small", "-8", "-8"},
		{"count", "4000000000", "4000000000"},
		{"ratio", "0.25", ".25"},
		{"size", "2MiB", "2MiB"},
		{"list", "b, c,", "[b, c]"},
		{"map", "x=1,y=a=b", "{x: 1, y: a=b}"},
		{"net", "192.168.0.0/16", "192.168.0.0/16"},
	}
	want := everything{
		Shared: shared{Timeout: 90 * time.Second},
		Server: server{URL: "nats://b", Token: config.SecretFile(token)},
		Name:   "x y",
		Format: "text",
		Yes:    true,
		Small:  -8,
		Count:  4_000_000_000,
		Ratio:  .25,
		Size:   2 * config.MiB,
		List: []string{
			"b",
			"c",
		},
		Map: map[string]string{"x": "1", "y": "a=b"},
		Net: netip.MustParsePrefix("192.168.0.0/16"),
	}
	want.Server.TLS.On = true

	root := map[string]string{}
	args, environ := make([]string, 0, len(values)), make([]string, 0, len(values))
	for _, v := range values {
		args = append(args, "--"+strings.NewReplacer(".", "-", "_", "-").Replace(v.key)+"="+v.text)
		environ = append(environ, "LOCKSTEP_"+strings.ToUpper(strings.ReplaceAll(v.key, ".", "_"))+"="+v.text)
		if !strings.Contains(v.key, ".") {
			root[v.key] = v.yaml
		}
	}
	var text strings.Builder
	for key, value := range root {
		fmt.Fprintf(&text, "%s: %s\n", key, value)
	}
	fmt.Fprintf(&text, "server:\n  url: nats://b\n  token_file: %s\n  tls: {on: true}\n", token)
	file := writeFile(t, text.String())

	for name, input := range map[string][2][]string{
		"flags": {args, nil}, "environment": {nil, environ}, "file": {{"--config", file}, nil},
		"file by environment": {nil, {"LOCKSTEP_CONFIG=" + file}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := defaults()
			_, warnings, err := load(&got, input[0], input[1])
			require.NoError(t, err)
			require.Empty(t, warnings)
			require.Equal(t, want, got)
			secret, err := got.Server.Token.Read()
			require.NoError(t, err)
			require.Equal(t, "sesame", secret)
		})
	}
}

func TestFlagsOverrideEnvironmentOverridesFileOverridesDefaults(t *testing.T) {
	t.Parallel()
	file := writeFile(t, "name: file\nformat: text\nlist: [file]\nmap: {file: x}\n")
	cfg := defaults()
	_, _, err := load(&cfg, []string{"--config", file, "--name=flag", "--list=one", "--list=two,three"},
		[]string{"LOCKSTEP_NAME=env", "LOCKSTEP_MAP=env=x", "LOCKSTEP_LIST=env", "LOCKSTEP_FORMAT="})
	require.NoError(t, err)
	require.Equal(t, "flag", cfg.Name)
	require.Equal(t, "text", cfg.Format, "an empty variable counts as unset")
	require.Equal(t, []string{"one", "two", "three"}, cfg.List, "a layer replaces the layer below; a repeated flag adds")
	require.Equal(t, map[string]string{"env": "x"}, cfg.Map)
	require.Equal(t, 64*config.KiB, cfg.Size)
}

func TestLoadReportsEveryFaultAtOnce(t *testing.T) {
	t.Parallel()
	file := writeFile(t, `
naem: x
server:
  url: ""
  tls: yes
  ulr: x
small: 128
size: 1.5GiB
size: 1
list: a
map: {a: [1]}
net: ~
telemetry: {a: b}
`)
	cfg := defaults()
	_, _, err := load(&cfg, []string{"--config", file, "--yes=perhaps", "--format=xml", "--map=a"}, []string{
		"LOCKSTEP_TIMEOUT=10",
		"LOCKSTEP_COUNT=-1",
		"LOCKSTEP_RATIO=x",
		"LOCKSTEP_SERVER_TOKEN_FILE=/does/not/exist",
	})
	var problems config.Problems
	require.ErrorAs(t, err, &problems)
	require.Equal(t, errcode.InvalidArgument, fault.CodeOf(err))
	for _, want := range []string{
		`unknown key naem; did you mean name? [config.yaml:2]`,
		`server.tls: must be a group of keys with values [config.yaml:5]`,
		`unknown key server.ulr; did you mean server.url? [config.yaml:6]`,
		`small (LOCKSTEP_SMALL, --small): "128" is not a whole number (int8) [config.yaml:7]`,
		`size (LOCKSTEP_SIZE, --size): "1.5GiB" is not a size such as 512, 64KiB or 10MB [config.yaml:8]`,
		`size: the key is already in line 8 [config.yaml:9]`,
		`list (LOCKSTEP_LIST, --list): "a" is not a list such as [a, b] [config.yaml:10]`,
		`map (LOCKSTEP_MAP, --map): is not a map such as {key: value}, with each key once [config.yaml:11]`,
		`net (LOCKSTEP_NET, --net): has no value; leave the key out to keep the default [config.yaml:12]`,
		`unknown key telemetry [config.yaml:13]`,
		`timeout (LOCKSTEP_TIMEOUT, --timeout): "10" is not a duration with a unit, such as 10s or 1m30s [LOCKSTEP_TIMEOUT]`,
		`count (LOCKSTEP_COUNT, --count): "-1" is not a whole number (uint32) [LOCKSTEP_COUNT]`,
		`ratio (LOCKSTEP_RATIO, --ratio): "x" is not a number such as 0.5 [LOCKSTEP_RATIO]`,
		`yes (LOCKSTEP_YES, --yes): "perhaps" is not true or false [--yes]`,
		`map (LOCKSTEP_MAP, --map): "a" is not key=value [--map]`,
		`format (LOCKSTEP_FORMAT, --format): "xml" is not one of json, text [--format]`,
		`server.token_file (LOCKSTEP_SERVER_TOKEN_FILE, --server-token-file): cannot read the secret: ` +
			`open /does/not/exist: no such file or directory [LOCKSTEP_SERVER_TOKEN_FILE]`,
		`server.url (LOCKSTEP_SERVER_URL, --server-url): is empty [config.yaml:4]`,
	} {
		require.Contains(t, err.Error(), "\n  "+want)
	}
	require.Len(t, problems, 18, err.Error())
}

func TestFileFaults(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ text, want string }{
		"empty":        {"", ""},
		"only comment": {"# nothing\n", ""},
		"null":         {"~", ""},
		"empty group":  {"server:\n", ""},
		"alias":        {"name: &n x\nformat: text\nlist: [*n, y]\n", ""},
		"broken":       {"a: [", "is not YAML"},
		"tabs":         {"server:\n\turl: x", "is not YAML"},
		"list":         {"[a]", "must be a group of keys with values [config.yaml:1]"},
		"two":          {"name: a\n---\nname: b\n", "more than one document"},
		"scalar key":   {"name: {a: b}", "name (LOCKSTEP_NAME, --name): is not a single value"},
		"cycle":        {"server: &s\n  tls: *s\n", "unknown key server.tls.tls"},
		"merge":        {"<<: {name: x}", "unknown key <<"},
		"wrong group":  {"url: x", "did you mean server.url?"},
		"too large":    {strings.Repeat("#", 1<<20+1), "larger than 1 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := defaults()
			_, _, err := load(&cfg, []string{"--config", writeFile(t, tc.text)}, nil)
			if tc.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tc.want)
		})
	}
	cfg := defaults()
	_, _, err := load(&cfg, []string{"--config=/does/not/exist"}, nil)
	require.ErrorContains(t, err, "cannot read the configuration file")
}

func TestCommandLineFaults(t *testing.T) {
	t.Parallel()
	for arg, want := range map[string]string{
		"--server-ulr=x": "did you mean --server-url?",
		"--nothing-like": "unknown flag: --nothing-like",
		"--name":         "needs an argument",
		"positional":     `unexpected argument "positional"`,
	} {
		cfg := defaults()
		_, _, err := load(&cfg, []string{arg}, nil)
		require.ErrorContains(t, err, want)
		require.Equal(t, errcode.InvalidArgument, fault.CodeOf(err))
	}
}

func TestUnknownVariablesGiveWarnings(t *testing.T) {
	t.Parallel()
	cfg := defaults()
	_, warnings, err := load(&cfg, nil, []string{
		"LOCKSTEP_SERVER_ULR=x", "LOCKSTEP_SERVER_COLOUR=x", "LOCKSTEP_SERVER_TLS_DEPTH=x",
		// Of another service, and those that Kubernetes sets for a Service named lockstep-server.
		"LOCKSTEP_RELAY_REGISTRY=x", "LOCKSTEP_SERVER_SERVICE_HOST=10.0.0.1", "LOCKSTEP_SERVER_SERVICE_PORT_HTTP=80",
		"LOCKSTEP_SERVER_PORT=tcp://10.0.0.1:80", "LOCKSTEP_SERVER_PORT_80_TCP_ADDR=10.0.0.1", "OTHER_SERVER_URL=x",
		"LOCKSTEP_SERVER_EMPTY=",
	})
	require.NoError(t, err)
	require.Equal(t, []string{
		"no setting is named LOCKSTEP_SERVER_ULR; did you mean LOCKSTEP_SERVER_URL?",
		"no setting is named LOCKSTEP_SERVER_COLOUR",
		"no setting is named LOCKSTEP_SERVER_TLS_DEPTH",
	}, warnings)
}

func TestManualNamesEverySetting(t *testing.T) {
	t.Parallel()
	cfg := defaults()
	stdout, _, err := load(&cfg, []string{"--help", "--name=x"}, nil)
	require.ErrorIs(t, err, config.ErrPrinted)
	binding, err := config.Bind(&cfg, "")
	require.NoError(t, err)
	oneLine := strings.Join(strings.Fields(stdout), " ")
	for _, f := range binding.Fields() {
		require.Contains(t, oneLine, " --"+f.Flag+" ")
		require.Contains(t, oneLine, "["+f.Env+", "+f.Key+"]")
	}
	for _, want := range []string{
		"program v3 It does things. Usage:", " server: the server --server-url url address of the server [",
		" server.tls: encryption --server-tls-on use TLS [",
		`a format (json, text) [LOCKSTEP_FORMAT, format] (default "json")`,
		"timeout of a request [LOCKSTEP_TIMEOUT, timeout] (default 1m30s)", "(default nats://ada:xxxxx@a:4222)",
		"--server-token-file file file with the token [", "(default a)", "(default k=v)",
	} {
		require.Contains(t, oneLine, want)
	}
	require.NotContains(t, stdout, "sesame")
	for line := range strings.Lines(stdout) {
		require.LessOrEqual(t, len([]rune(line)), 101, line)
	}

	stdout, _, err = load(&cfg, []string{"--version"}, nil)
	require.ErrorIs(t, err, config.ErrPrinted)
	require.Equal(t, "program v3\n", stdout)
}

func TestPrintedConfigLoadsTheSameValues(t *testing.T) {
	t.Parallel()
	token := writeFile(t, "sesame")
	cfg := defaults()
	cfg.Server.URL = "nats://a:4222"
	stdout, _, err := load(&cfg, []string{"--print-config", "--list=x,y", "--yes"},
		[]string{"LOCKSTEP_SERVER_TOKEN_FILE=" + token, "LOCKSTEP_NAME=3"})
	require.ErrorIs(t, err, config.ErrPrinted)
	require.Contains(t, stdout, "# from --list\n")
	require.Contains(t, stdout, "# from LOCKSTEP_SERVER_TOKEN_FILE\n")
	again := everything{}
	_, _, err = load(&again, []string{"--config", writeFile(t, stdout)}, nil)
	require.NoError(t, err)
	require.Equal(t, cfg, again)

	cfg = defaults()
	stdout, _, err = load(&cfg, []string{"--print-config"}, nil)
	require.ErrorIs(t, err, config.ErrPrinted)
	require.NotContains(t, stdout, "sesame")
}

func TestPrefixPutsAllKeysBelowAKey(t *testing.T) {
	t.Parallel()
	cfg := defaults()
	binding, err := config.Bind(&cfg, "state")
	require.NoError(t, err)
	require.NoError(t, binding.ApplyFile("up.yaml", []byte("watcher: {a: b}\nstate: {server: {url: file}, name: file}\n")))
	require.NoError(t, binding.Validate())
	require.Equal(t, "file", cfg.Name)
	require.EqualValues(t, "file", cfg.Server.URL)

	require.ErrorContains(t, binding.ApplyFile("up.yaml", []byte("state: {naem: x}")), "did you mean state.name?")
	cfg.Shared.Timeout = -1
	require.ErrorContains(t, binding.Validate(), "state.timeout (LOCKSTEP_STATE_TIMEOUT, --state-timeout): is negative")
}

func TestBindRejectsWrongStructs(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]any{
		"want a pointer":       everything{},
		"pointer to a struct":  new(int),
		"field A: no yaml tag": &struct{ A string }{},
		"cannot be configured: chan int": &struct {
			A chan int `yaml:"a"`
		}{},
		"cannot be configured: []int": &struct {
			A []int `yaml:"a"`
		}{},
		`"aB" is not snake_case`: &struct {
			A string `yaml:"aB"` //nolint:tagliatelle // the fault itself
		}{},
		"only a struct can be inline": &struct {
			A string `yaml:",inline"`
		}{},
		"a.b_c and a_b.c are both --a-b-c": &struct {
			A struct {
				B string `yaml:"b_c"`
			} `yaml:"a"`
			C struct {
				D string `yaml:"c"`
			} `yaml:"a_b"`
		}{},
		"--config and config are both": &struct {
			A string `yaml:"config"`
		}{},
	} {
		_, err := config.Bind(cfg, "")
		require.ErrorContains(t, err, want)
	}
}
