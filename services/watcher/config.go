package watcher

import (
	"io"
	"time"

	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/utils/clock"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/leader"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/watcher/filter"
	"lockstep.internal/services/watcher/kube"
)

// Config of a watcher. Start from [DefaultConfig].
type Config struct {
	service.Config `yaml:",inline"`

	Telemetry telemetry.Config `yaml:"telemetry" help:"log and traces"`
	// CredentialsFile names the cell, the agent and the NATS servers.
	CredentialsFile string        `yaml:"credentials_file" help:"the agent's credentials, written at its registration"`
	Kubernetes      kube.Config   `yaml:"kubernetes" help:"the cluster to watch"`
	Lease           leader.Config `yaml:"lease" help:"leader election between the watchers of an agent"`
	Publish         Publish       `yaml:"publish" help:"how events are published"`
	// Workloads are tracked besides workspaces.
	Workloads Workloads `yaml:"workloads" help:"Deployments, StatefulSets and DaemonSets to report for deploy events"`
	// FullResyncInterval applies until the watcher receives the agent's configuration.
	FullResyncInterval time.Duration `yaml:"full_resync_interval" help:"time between full resyncs until the agent's configuration arrives"`
	TickInterval       time.Duration `yaml:"tick_interval" help:"time between tick events"`

	// ConfigTimeout is how long the first resync waits for the agent's configuration. Defaults to 5 s.
	ConfigTimeout time.Duration `yaml:"-"`
	// Clock of observations, ticks and intervals. Defaults to the real one.
	Clock clock.WithTicker `yaml:"-"`
	// Log receives the log. Defaults to standard error.
	Log io.Writer `yaml:"-"`
}

// Publish configures the publisher.
type Publish struct {
	Window        int           `yaml:"window" help:"maximum number of messages in flight"`
	AckTimeout    time.Duration `yaml:"ack_timeout" help:"time after which an unacknowledged message is published again"`
	MaxBacklogAge time.Duration `yaml:"max_backlog_age" help:"time an event may wait before the watcher is not ready"`
	MaxMessage    config.Bytes  `yaml:"max_message" help:"largest event; a larger one is reported as rejected"`
}

// Workloads selects the workloads to track. Objects of workspaces are never among them.
type Workloads struct {
	Enabled    bool     `yaml:"enabled" help:"report workloads; needs the permissions in deploy/rbac/workloads"`
	Namespaces []string `yaml:"namespaces" help:"namespaces to read; empty = all"`
	Selector   string   `yaml:"selector" help:"label selector of the workloads, such as team=shop,tier!=test; empty = all"`
	// Annotations besides those of Lockstep and of the Deployment controller.
	Annotations []string `yaml:"annotations" help:"prefixes of further annotations to report"`
}

// DefaultConfig returns the defaults. CredentialsFile has none.
func DefaultConfig() Config {
	return Config{
		Config:     service.DefaultConfig("127.0.0.1:9090"),
		Telemetry:  telemetry.DefaultConfig(),
		Kubernetes: kube.DefaultConfig(),
		Lease:      leader.DefaultConfig(),
		Publish: Publish{
			Window: 256, AckTimeout: 3 * time.Second, MaxBacklogAge: time.Minute, MaxMessage: topology.MaxMessageSize,
		},
		Workloads: Workloads{
			Annotations: []string{"app.kubernetes.io/", "kubernetes.io/change-cause", "argocd.argoproj.io/", "meta.helm.sh/"},
		},
		FullResyncInterval: time.Hour,
		TickInterval:       15 * time.Second,
	}
}

// minMessage leaves room for the event of a rejected object.
const minMessage = 4 * config.KiB

// Validate returns all errors.
func (c Config) Validate() []error {
	var errs []error
	if c.CredentialsFile == "" {
		errs = append(errs,
			config.Invalid("credentials_file", "is missing: register the agent and pass the file that the registration writes"))
	} else if _, err := natsauth.ReadAgentCredentials(c.CredentialsFile); err != nil {
		errs = append(errs, config.Invalid("credentials_file", "%v", err))
	}
	if c.FullResyncInterval < time.Second {
		errs = append(errs, config.Invalid("full_resync_interval", "%s is less than 1s", c.FullResyncInterval))
	}
	if c.TickInterval < time.Second {
		errs = append(errs, config.Invalid("tick_interval", "%s is less than 1s", c.TickInterval))
	}
	return errs
}

// Validate checks the limits.
func (p Publish) Validate() []error {
	var errs []error
	if p.Window < 1 {
		errs = append(errs, config.Invalid("window", "%d is less than 1", p.Window))
	}
	for key, d := range map[string]time.Duration{"ack_timeout": p.AckTimeout, "max_backlog_age": p.MaxBacklogAge} {
		if d <= 0 {
			errs = append(errs, config.Invalid(key, "%s is not a positive duration", d))
		}
	}
	if p.MaxMessage < minMessage || p.MaxMessage > topology.MaxMessageSize {
		errs = append(
			errs,
			config.Invalid("max_message", "%s is not between %s and %s", p.MaxMessage, minMessage,
				config.Bytes(topology.MaxMessageSize)),
		)
	}
	return errs
}

// Validate checks names and the selector.
func (w Workloads) Validate() []error {
	var errs []error
	if _, err := filter.NewSelection(w.Namespaces, w.Selector); err != nil {
		errs = append(errs, config.Invalid("selector", "%v", err))
	}
	for _, namespace := range w.Namespaces {
		for _, problem := range content.IsDNS1123Label(namespace) {
			errs = append(errs, config.Invalid("namespaces", "%q: %s", namespace, problem))
		}
	}
	for _, prefix := range w.Annotations {
		if prefix == "" {
			errs = append(errs, config.Invalid("annotations", "an empty prefix would report all annotations of any size"))
		}
	}
	return errs
}
