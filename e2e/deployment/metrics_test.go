package deployment_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/architecture"
)

func TestEveryServiceHasDashboardAndIsScraped(t *testing.T) {
	t.Parallel()
	type scraping struct {
		Configs []struct {
			Job     string                       `yaml:"job_name"`
			Targets []struct{ Targets []string } `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	targets := map[string]string{}
	for _, c := range document[scraping](t, "deploy/prometheus.yaml").Configs {
		targets[c.Job] = c.Targets[0].Targets[0]
	}
	compose := document[composeFile](t, "docker-compose.yml")
	for _, name := range services(t) {
		require.NotEmpty(t, expressions(t, "deploy/grafana/dashboards/"+name+".json"))
		require.Equal(t, name+compose.Services[name].Environment["LOCKSTEP_OPS_LISTEN"], targets[name])
	}
}

func TestDashboardsShowMetricsThatExist(t *testing.T) {
	t.Parallel()
	root, err := architecture.Root()
	require.NoError(t, err)
	boards, err := filepath.Glob(filepath.Join(root, "deploy", "grafana", "dashboards", "*.json"))
	require.NoError(t, err)
	require.Greater(t, len(boards), len(services(t)))
	literals := sourceLiterals(t, root)
	require.True(t, counted("lockstep_part_ready", literals))
	require.True(t, counted("lockstep_outbox_published_total", literals))
	require.True(t, counted("lockstep_watcher_acked_total", literals))
	require.False(t, counted("lockstep_watcher_published", literals))
	require.False(t, counted("lockstep_state_acked_total", literals))
	for _, board := range boards {
		name := "deploy/grafana/dashboards/" + filepath.Base(board)
		for _, expression := range expressions(t, name) {
			for _, metric := range metrics(expression) {
				require.True(t, counted(metric, literals), "%s shows %s, which nothing in libs or services counts", name, metric)
			}
		}
	}
}

func TestAlertsUseMetricsThatExistAndAreDocumented(t *testing.T) {
	t.Parallel()
	root, err := architecture.Root()
	require.NoError(t, err)
	literals := sourceLiterals(t, root)
	operations := string(content(t, "docs/operations.md"))
	type rules struct {
		Groups []struct {
			Rules []struct {
				Alert      string
				Expression string `yaml:"expr"`
			}
		}
	}
	found := document[rules](t, "deploy/alerts.yaml").Groups
	require.NotEmpty(t, found)
	for _, group := range found {
		require.NotEmpty(t, group.Rules)
		for _, rule := range group.Rules {
			used := metrics(rule.Expression)
			require.NotEmpty(t, used, rule.Alert)
			for _, metric := range used {
				require.True(t, counted(metric, literals), "%s uses %s, which no service exports", rule.Alert, metric)
			}
			require.Contains(t, operations, "| "+rule.Alert+" |")
		}
	}
}

// expressions returns all queries of a dashboard.
func expressions(t *testing.T, file string) []string {
	t.Helper()
	var board struct {
		Panels []struct {
			Targets []struct {
				Expression string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	require.NoError(t, json.Unmarshal(content(t, file), &board), file)
	var found []string
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			found = append(found, target.Expression)
		}
	}
	require.NotEmpty(t, found, file)
	return found
}

var (
	metricName = regexp.MustCompile(`\b(lockstep_[a-z0-9_]+)`)
	histogram  = regexp.MustCompile(`_(bucket|sum|count)$`)
)

func metrics(expression string) []string {
	found := metricName.FindAllString(expression, -1)
	for i, name := range found {
		found[i] = histogram.ReplaceAllString(name, "")
	}
	return found
}

// sourceLiterals returns the string literals of each file that is linked into services.
func sourceLiterals(t *testing.T, root string) []map[string]bool {
	t.Helper()
	files, err := architecture.Files(root)
	require.NoError(t, err)
	var all []map[string]bool
	for _, file := range files {
		ours := strings.HasPrefix(file, "libs/") || strings.HasPrefix(file, "services/")
		if !ours || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, filepath.FromSlash(file)), nil,
			parser.SkipObjectResolution)
		require.NoError(t, err)
		literals := map[string]bool{}
		ast.Inspect(parsed, func(node ast.Node) bool {
			if literal, ok := node.(*ast.BasicLit); ok && literal.Kind == token.STRING {
				if text, err := strconv.Unquote(literal.Value); err == nil {
					literals[text] = true
				}
			}
			return true
		})
		all = append(all, literals)
	}
	return all
}

// counted reports whether a file names the metric: as a whole, as a prefix that ends with _ and the
// rest, or as namespace, subsystem and name.
func counted(metric string, files []map[string]bool) bool {
	const namespace = "lockstep_"
	for _, literals := range files {
		if literals[metric] {
			return true
		}
		for i := range metric {
			if metric[i] != '_' || !literals[metric[i+1:]] {
				continue
			}
			prefix := metric[:i]
			subsystem, _ := strings.CutPrefix(prefix, namespace)
			if literals[prefix+"_"] || (literals[strings.TrimSuffix(namespace, "_")] && literals[subsystem]) {
				return true
			}
		}
	}
	return false
}
