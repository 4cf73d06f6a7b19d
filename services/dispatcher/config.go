package dispatcher

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/leader"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/services/dispatcher/desired"
)

// Config is the configuration of the dispatcher.
type Config struct {
	service.Config `yaml:",inline"`

	Telemetry       telemetry.Config `yaml:"telemetry" help:"logs, traces and metrics"`
	CredentialsFile string           `yaml:"credentials_file" help:"path of the credentials file that was written when the agent was registered; required"`
	Kubeconfig      string           `yaml:"kubeconfig" help:"kubeconfig of the cluster; empty = the cluster that the program runs in"`
	NamespacePrefix string           `yaml:"namespace_prefix" help:"prefix of the names of all workspace namespaces; other namespaces are never changed; empty = that of the credentials file"`
	PodSecurity     string           `yaml:"pod_security" oneof:"restricted|baseline|privileged" help:"the weakest pod security level that a workspace's namespace may enforce"`
	AllowedKinds    []string         `yaml:"allowed_kinds" help:"kinds of objects that the dispatcher applies; it rejects a workspace that contains another kind"`
	Workers         int              `yaml:"workers" help:"maximum number of workspaces applied concurrently"`
	ApplyTimeout    time.Duration    `yaml:"apply_timeout" help:"timeout of one attempt to apply a workspace"`
	RetryMin        time.Duration    `yaml:"retry_min" help:"pause after a workspace's first failure; it doubles with each"`
	RetryMax        time.Duration    `yaml:"retry_max" help:"longest pause between two attempts for a workspace"`
	Lease           leader.Config    `yaml:"lease" help:"leader election: one dispatcher per agent holds the Lease"`

	// PublishTimeout is the time after which an unacknowledged result is published again. Defaults to 3 s.
	PublishTimeout time.Duration `yaml:"-"`
}

// DefaultConfig returns the configuration with its defaults. The credentials file has no default.
func DefaultConfig() Config {
	return Config{
		Config:       service.DefaultConfig("127.0.0.1:8083"),
		Telemetry:    telemetry.DefaultConfig(),
		PodSecurity:  desired.PodSecurityRestricted.String(),
		AllowedKinds: desired.KindNames(),
		Workers:      8,
		ApplyTimeout: time.Minute,
		RetryMin:     time.Second,
		RetryMax:     5 * time.Minute,
		Lease:        leader.DefaultConfig(),
	}
}

// Validate returns all errors of the configuration.
func (c Config) Validate() []error {
	var errs []error
	if c.CredentialsFile == "" {
		errs = append(errs, config.Invalid("credentials_file", "is required: path of the agent's credentials file"))
	} else if _, err := natsauth.ReadAgentCredentials(c.CredentialsFile); err != nil {
		errs = append(errs, config.Invalid("credentials_file", "%v", err))
	}
	if c.NamespacePrefix != "" && len(validation.IsDNS1123Label(strings.TrimSuffix(c.NamespacePrefix, "-"))) > 0 {
		errs = append(errs, config.Invalid("namespace_prefix",
			"%q is not a prefix of a namespace name: use a-z, 0-9 and -, such as ws-", c.NamespacePrefix))
	}
	for _, kind := range c.AllowedKinds {
		if !slices.Contains(desired.KindNames(), kind) {
			known := strings.Join(desired.KindNames(), ", ")
			errs = append(errs, config.Invalid("allowed_kinds", "%q is not one of %s", kind, known))
		}
	}
	if !slices.Contains(c.AllowedKinds, desired.KindNamespace) {
		errs = append(errs, config.Invalid("allowed_kinds",
			"%s is missing: every workspace has its own namespace", desired.KindNamespace))
	}
	if c.Workers < 1 {
		errs = append(errs, config.Invalid("workers", "%d is less than 1", c.Workers))
	}
	for key, value := range map[string]time.Duration{"apply_timeout": c.ApplyTimeout, "retry_min": c.RetryMin} {
		if value <= 0 {
			errs = append(errs, config.Invalid(key, "%s is not a positive duration", value))
		}
	}
	if c.RetryMax < c.RetryMin {
		errs = append(errs, config.Invalid("retry_max", "%s is less than retry_min, %s", c.RetryMax, c.RetryMin))
	}
	return errs
}

// Program describes the binary.
func Program() config.Program {
	return config.Program{
		Name: "lockstep-dispatcher",
		About: "The dispatcher runs in a cluster, applies the desired states of the agent's workspaces, " +
			"and reports the results. It needs the agent's credentials file.",
	}
}
