package catalog_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"lockstep.internal/libs/config"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/sink/catalog"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) {
	// A dependency of the BigQuery client starts a goroutine at process start.
	leaktest.Main(m, goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"))
}

const example = `
shop-slack:
  type: slack
  filter:
    namespaces: [shop]
    labels: {team: web}
    expression: 'kind == "deployment" && change != "restarted"'
  template: "{{.Name}} {{.Fact}}"
  slack: {channel: C1, token_file: TOKEN}
statuses:
  type: github_status
  github: {token_file: TOKEN, source: {repositories: [acme/*]}}
deployments: {type: github_deployment, backfill: true, github: {token_file: TOKEN, source: {repository: acme/shop}}}
previews: {type: github_comment, github: {token_file: TOKEN, source: {repositories: [acme/*]}}}
warehouse: {type: bigquery, bigquery: {project: acme-deploys, dataset: deploys}}
hook:
  type: webhook
  rate: {count: 100, window: 1m}
  retry: {give_up: 1h}
  network: {allow_networks: [10.20.0.0/16]}
  webhook: {url: "https://hooks.example.com/x", secret_file: SECRET}
`

func document(t *testing.T) string {
	t.Helper()
	token, secret := filepath.Join(t.TempDir(), "token"), filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(token, []byte("t"), 0o600))
	require.NoError(t, os.WriteFile(secret, []byte("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n"), 0o600))
	return strings.NewReplacer("TOKEN", token, "SECRET", secret).Replace(example)
}

func TestSinksAreReadAndBuilt(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "sinks.yaml")
	require.NoError(t, os.WriteFile(path, []byte(document(t)), 0o600))
	configs, err := catalog.ReadFile(path)
	require.NoError(t, err)
	require.Len(t, configs, 6)
	require.Equal(t, time.Hour, configs[5].Retry.GiveUp)
	require.Equal(t, time.Second, configs[5].Retry.Min, "an absent setting has its default")
	sinks, err := catalog.Build(configs)
	require.NoError(t, err)
	t.Cleanup(sinks.Close)
	var names []string
	for _, e := range sinks.Entries {
		names = append(names, e.Name+" "+e.Type)
	}
	require.Equal(t, []string{
		"shop-slack slack", "statuses github_status", "deployments github_deployment", "previews github_comment",
		"warehouse bigquery", "hook webhook",
	}, names)
	require.True(t, sinks.Entries[2].Backfill)

	workload := events.Workload{Namespace: "shop", Kind: "deployment", Name: "a", Labels: map[string]string{"team": "web"}}
	f := events.DeployFact{Fact: events.FactProgressed, Workload: workload}
	require.True(t, sinks.Entries[0].Filter.Selects(f))
	require.False(t, sinks.Entries[1].Filter.Selects(f), "statuses ignore progress by default")
	require.True(t, sinks.Entries[4].Filter.Selects(f), "all facts")
	f.Workload.Namespace = "other"
	require.False(t, sinks.Entries[0].Filter.Selects(f))
}

func TestEmptyFileIsValid(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "# none\n", "---\n", "null\n"} {
		configs, err := catalog.Read("sinks.yaml", []byte(text))
		require.NoError(t, err)
		require.Empty(t, configs)
	}
}

func TestAllErrorsAreReportedWithLines(t *testing.T) {
	t.Parallel()
	_, err := catalog.Read("sinks.yaml", []byte(`Shop:
  type: slack
a:
  type: mail
b:
  type: slack
  chanel: C1
c:
  type: webhook
  template: "{{"
  filter:
    expression: name +
  network: {allow_networks: [ten]}
  webhook: {url: ftp://x}
d: {type: github_comment}
e: {}
`))
	var problems config.Problems
	require.ErrorAs(t, err, &problems)
	text := err.Error()
	for _, want := range []string{
		"Shop: not a valid name", `a.type: "mail"`, "b.chanel", "[sinks.yaml:7]", "c.template: parse the template",
		"c.filter.expression: parse the expression", `c.network.allow_networks: "ten" is not a network`, "c.webhook.url",
		"d.github.token_file: is required", "d.github.source.repositories: is required",
		"c.webhook.secret_file: is required", "e.type: is required",
	} {
		require.Contains(t, text, want)
	}
	require.NotContains(t, text, "LOCKSTEP_")

	for _, text := range []string{"- a\n", "a: [", "\t"} {
		_, err := catalog.Read("sinks.yaml", []byte(text))
		require.ErrorContains(t, err, "sinks.yaml")
	}
	_, err = catalog.ReadFile("/none")
	require.Error(t, err)
	_, err = catalog.Build([]catalog.Config{{Name: "x", Type: "mail"}})
	require.ErrorContains(t, err, "sink x")
}

func TestExampleIsValid(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../../../deploy/examples/sinks.yaml")
	require.NoError(t, err)
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n"), 0o600))
	local := regexp.MustCompile(`/etc/lockstep/[a-z.]+`).ReplaceAllString(string(raw), secret)
	configs, err := catalog.Read("sinks.yaml", []byte(local))
	require.NoError(t, err)
	types := map[string]bool{}
	for _, c := range configs {
		types[c.Type] = true
	}
	require.Len(t, types, 6, "one of each type")
}

func TestManualDescribesEverySetting(t *testing.T) {
	t.Parallel()
	text, err := catalog.Manual()
	require.NoError(t, err)
	require.Contains(t, text, "github.source.commit_keys (list) = lockstep.dev/commit,org.opencontainers.image.revision\n")
	require.NotContains(t, text, "\n    \n", "every setting has a help text")
}

func FuzzReadNeverPanics(f *testing.F) {
	f.Add(example)
	f.Add("a: {type: webhook, webhook: {url: x}}")
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "_file") {
			return // the file would be read
		}
		configs, err := catalog.Read("sinks.yaml", []byte(text))
		if err != nil {
			require.Empty(t, configs)
		}
	})
}
