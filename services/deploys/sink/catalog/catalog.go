// Package catalog reads the configuration of sinks from a file and creates the sinks.
//
// The file is YAML. Each key is the name of a sink, which identifies its position. [Manual] describes every setting.
// The error for an invalid file lists all errors with their lines.
//
//	shop-slack:
//	  type: slack
//	  filter: {namespaces: [shop]}
//	  slack: {channel: C0123456789, token_file: /etc/lockstep/slack-token}
package catalog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"go.yaml.in/yaml/v3"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/egress"
	"lockstep.internal/services/deploys/sink"
	"lockstep.internal/services/deploys/sink/bigquery"
	"lockstep.internal/services/deploys/sink/github"
	"lockstep.internal/services/deploys/sink/slack"
	"lockstep.internal/services/deploys/sink/webhook"
)

// Types of sinks.
const (
	GitHubStatus     = "github_status"
	GitHubDeployment = "github_deployment"
	GitHubComment    = "github_comment"
	Slack            = "slack"
	BigQuery         = "bigquery"
	Webhook          = "webhook"
)

// RateConfig is a rate limit in addition to the limits of the destination.
type RateConfig struct {
	Count  int           `yaml:"count" help:"writes in any window; 0 means no further limit"`
	Window time.Duration `yaml:"window" help:"length of the window"`
	Burst  int           `yaml:"burst" help:"writes that may happen at once"`
}

// Validate returns the errors of the limit.
func (c RateConfig) Validate() []error {
	if c.Count < 0 || c.Burst < 0 || c.Count > 0 && c.Window <= 0 {
		return []error{config.Invalid("count", "must be at least 0, with a window longer than 0")}
	}
	return nil
}

// Config of one sink.
type Config struct {
	// Name is the key in the file.
	Name     string            `yaml:"-"`
	Type     string            `yaml:"type" oneof:"github_status|github_deployment|github_comment|slack|bigquery|webhook" help:"type of the destination"`
	Backfill bool              `yaml:"backfill" help:"start a new sink with the oldest stored fact instead of the next one"`
	Filter   sink.FilterConfig `yaml:"filter"`
	Template string            `yaml:"template" help:"text/template of the message, the comment, the description of the status, or the body of the webhook; default: that of the type"`
	Rate     RateConfig        `yaml:"rate"`
	Retry    sink.Retry        `yaml:"retry"`
	Timeout  time.Duration     `yaml:"timeout" help:"timeout of one request"`
	Waiting  int               `yaml:"waiting" help:"largest number of unfinished facts in memory"`
	Parallel int               `yaml:"parallel" help:"webhook: workloads with concurrent deliveries"`
	Network  egress.Config     `yaml:"network"`

	GitHub   github.Config   `yaml:"github"`
	Slack    slack.Config    `yaml:"slack"`
	BigQuery bigquery.Config `yaml:"bigquery"`
	Webhook  webhook.Config  `yaml:"webhook"`
}

// DefaultConfig returns the default configuration.
func DefaultConfig() Config {
	return Config{
		Retry: sink.DefaultRetry(), Timeout: 30 * time.Second, Waiting: 500, Parallel: 4,
		Rate:   RateConfig{Window: time.Minute, Burst: 10},
		GitHub: github.DefaultConfig(), Slack: slack.DefaultConfig(),
		BigQuery: bigquery.DefaultConfig(), Webhook: webhook.DefaultConfig(),
	}
}

// Validate returns the errors of the sink.
func (c Config) Validate() []error {
	var faults []error
	if c.Type == "" {
		faults = append(faults, config.Invalid("type", "is required"))
	}
	if c.Timeout <= 0 || c.Waiting < 1 || c.Parallel < 1 {
		faults = append(faults, config.Invalid("", "timeout, waiting and parallel must be more than 0"))
	}
	if c.Retry.Min <= 0 || c.Retry.Max < c.Retry.Min || c.Retry.GiveUp <= 0 {
		faults = append(faults, config.Invalid("retry", "min and give_up must be more than 0, and max at least min"))
	}
	if _, err := sink.ParseTemplate(c.Template, nil); err != nil {
		faults = append(faults, config.Invalid("template", "%v", err))
	}
	for _, key := range c.missing() {
		faults = append(faults, config.Invalid(c.section()+"."+key, "is required"))
	}
	return faults
}

func (c Config) section() string {
	switch c.Type {
	case GitHubStatus, GitHubDeployment, GitHubComment:
		return "github"
	default:
		return c.Type
	}
}

func (c Config) missing() []string {
	switch c.section() {
	case "github":
		return c.GitHub.Missing()
	case Slack:
		return c.Slack.Missing()
	case BigQuery:
		return c.BigQuery.Missing()
	case Webhook:
		return c.Webhook.Missing()
	default:
		return nil
	}
}

const maxFile = 1 << 20

// ReadFile reads the sinks of a file.
func ReadFile(path string) ([]Config, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the sinks: %w", err)
	}
	defer file.Close() //nolint:errcheck // Opened for reading.
	raw, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read the sinks: %w", err)
	}
	return Read(filepath.Base(path), raw)
}

// Read reads the sinks of a document. It returns invalid settings as [config.Problems], which contain the name of the
// document.
func Read(name string, raw []byte) ([]Config, error) {
	if len(raw) > maxFile {
		return nil, fmt.Errorf("%s is larger than 1 MiB", name)
	}
	names, err := keys(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	var problems config.Problems
	sinks := make([]Config, 0, len(names))
	for _, key := range names {
		if !sink.ValidName(key) {
			problems = append(problems, config.Problem{Key: key, Message: "not a valid name: use a-z, 0-9 and -, at most 40"})
			continue
		}
		c := DefaultConfig()
		c.Name = key
		binding, err := config.Bind(&c, key)
		if err != nil {
			return nil, err
		}
		err = binding.ApplyFile(name, raw)
		if err == nil {
			err = binding.Validate()
		}
		var found config.Problems
		if err != nil && !errors.As(err, &found) {
			return nil, err
		}
		for _, f := range found {
			f.Env, f.Flag = "", "" // Sinks have neither.
			problems = append(problems, f)
		}
		sinks = append(sinks, c)
	}
	if len(problems) > 0 {
		return nil, problems
	}
	return sinks, nil
}

// keys returns the distinct names of the sinks in order.
func keys(raw []byte) ([]string, error) {
	var document yaml.Node
	err := yaml.NewDecoder(bytes.NewReader(raw)).Decode(&document)
	if errors.Is(err, io.EOF) || err == nil && len(document.Content) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("is not YAML: %w", err)
	}
	root := document.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil, nil
	}
	if root.Kind != yaml.MappingNode {
		return nil, errors.New("must be a mapping of sink names to settings")
	}
	var names []string
	seen := map[string]bool{}
	for i := 0; i+1 < len(root.Content); i += 2 {
		name := root.Content[i].Value
		if !seen[name] {
			names = append(names, name)
		}
		seen[name] = true
	}
	return names, nil
}

// Manual describes every setting of a sink.
func Manual() (string, error) {
	c := DefaultConfig()
	binding, err := config.Bind(&c, "")
	if err != nil {
		return "", err
	}
	var text bytes.Buffer
	for _, f := range binding.Fields() {
		fmt.Fprintf(&text, "%s (%s)", f.Key, f.Type)
		if f.Default != "" {
			fmt.Fprintf(&text, " = %s", f.Default)
		}
		fmt.Fprintf(&text, "\n    %s\n", f.Help)
	}
	return text.String(), nil
}
