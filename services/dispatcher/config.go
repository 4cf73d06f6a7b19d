package dispatcher

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/services/dispatcher/desired"
)

// Config of the dispatcher.
type Config struct {
	service.Config `yaml:",inline"`

	Telemetry       telemetry.Config `yaml:"telemetry" help:"logs, traces and metrics"`
	CredentialsFile string           `yaml:"credentials_file" help:"the agent's credentials file, as made when the agent was registered; required"`
	Kubeconfig      string           `yaml:"kubeconfig" help:"kubeconfig of the cluster; empty = the cluster that the program runs in"`
	NamespacePrefix string           `yaml:"namespace_prefix" help:"what the name of every workspace's namespace begins with; others are never touched"`
	PodSecurity     string           `yaml:"pod_security" oneof:"restricted|baseline|privileged" help:"the weakest pod security that a workspace's namespace may enforce"`
	AllowedKinds    []string         `yaml:"allowed_kinds" help:"kinds of objects that are applied; a workspace with another one is refused as a whole"`
	Workers         int              `yaml:"workers" help:"how many workspaces are worked on at a time"`
	ApplyTimeout    time.Duration    `yaml:"apply_timeout" help:"how long one attempt at a workspace may take"`
	RetryMin        time.Duration    `yaml:"retry_min" help:"pause after a workspace's first failure; it doubles with each"`
	RetryMax        time.Duration    `yaml:"retry_max" help:"longest pause between attempts at a workspace"`
	Lease           Lease            `yaml:"lease" help:"the lease that lets one dispatcher of an agent work at a time"`
}

// Lease is the timing of the leader election.
type Lease struct {
	Duration      time.Duration `yaml:"duration" help:"how long others wait before they take over from a dispatcher that is gone without a word"`
	RenewDeadline time.Duration `yaml:"renew_deadline" help:"after how long without renewing the lease a dispatcher stops; less than duration"`
	RetryPeriod   time.Duration `yaml:"retry_period" help:"pause between attempts to take or renew the lease"`
}

// DefaultConfig listens for operators on 127.0.0.1:8083 and works on 8 workspaces at a time.
func DefaultConfig() Config {
	return Config{
		Config:          service.DefaultConfig("127.0.0.1:8083"),
		Telemetry:       telemetry.DefaultConfig(),
		NamespacePrefix: "ws-",
		PodSecurity:     desired.PodSecurityRestricted.String(),
		AllowedKinds:    desired.KindNames(),
		Workers:         8,
		ApplyTimeout:    time.Minute,
		RetryMin:        time.Second,
		RetryMax:        5 * time.Minute,
		Lease:           Lease{Duration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second},
	}
}

// Validate returns everything that is wrong.
func (c Config) Validate() []error {
	var faults []error
	if c.CredentialsFile == "" {
		faults = append(faults, config.Invalid("credentials_file", "is required: the file that was made when the agent was registered"))
	} else if _, err := natsauth.ReadAgentCredentials(c.CredentialsFile); err != nil {
		faults = append(faults, config.Invalid("credentials_file", "%v", err))
	}
	if c.NamespacePrefix == "" || len(validation.IsDNS1123Label(strings.TrimSuffix(c.NamespacePrefix, "-"))) > 0 {
		faults = append(faults, config.Invalid("namespace_prefix", "%q does not begin a namespace's name; write a-z, 0-9 and -, such as ws-", c.NamespacePrefix))
	}
	for _, kind := range c.AllowedKinds {
		if !slices.Contains(desired.KindNames(), kind) {
			faults = append(faults, config.Invalid("allowed_kinds", "%q is none of %s", kind, strings.Join(desired.KindNames(), ", ")))
		}
	}
	if !slices.Contains(c.AllowedKinds, desired.KindNamespace) {
		faults = append(faults, config.Invalid("allowed_kinds", "%s is missing: every workspace has one of its own", desired.KindNamespace))
	}
	if c.Workers < 1 {
		faults = append(faults, config.Invalid("workers", "%d is less than 1", c.Workers))
	}
	for key, value := range map[string]time.Duration{"apply_timeout": c.ApplyTimeout, "retry_min": c.RetryMin} {
		if value <= 0 {
			faults = append(faults, config.Invalid(key, "%s is not a positive duration", value))
		}
	}
	if c.RetryMax < c.RetryMin {
		faults = append(faults, config.Invalid("retry_max", "%s is less than retry_min, %s", c.RetryMax, c.RetryMin))
	}
	return faults
}

// Validate checks that a leader stops before others take over.
func (l Lease) Validate() []error {
	switch {
	case l.RetryPeriod <= 0:
		return []error{config.Invalid("retry_period", "%s is not a positive duration", l.RetryPeriod)}
	case l.RenewDeadline <= l.RetryPeriod*3/2:
		return []error{config.Invalid("renew_deadline", "%s must be more than one and a half times retry_period, %s", l.RenewDeadline, l.RetryPeriod)}
	case l.Duration <= l.RenewDeadline:
		return []error{config.Invalid("duration", "%s must be more than renew_deadline, %s", l.Duration, l.RenewDeadline)}
	case l.Duration < time.Second:
		return []error{config.Invalid("duration", "%s is less than 1s", l.Duration)}
	default:
		return nil
	}
}

// Program names the binary.
func Program() config.Program {
	return config.Program{
		Name:  "lockstep-dispatcher",
		About: "The dispatcher runs in a cluster, applies what the control plane desires of the agent's workspaces, and tells what became of it. It needs the agent's credentials file.",
	}
}
