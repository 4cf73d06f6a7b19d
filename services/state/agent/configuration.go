package agent

import (
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/invalid"
	"lockstep.internal/services/state/workspace"
)

// Defaults of an agent's configuration.
const (
	DefaultFullResyncInterval    = time.Hour
	DefaultUnschedulablePatience = 5 * time.Minute
	DefaultStopPatience          = 5 * time.Minute
	DefaultTerminationPatience   = 5 * time.Minute
	DefaultExpiryWarning         = 15 * time.Minute
	// Unlimited disables a limit.
	Unlimited = -1
)

// minDuration is the minimum of a duration: the agent's clock ticks in seconds.
const minDuration = time.Second

// Configuration of an agent and its workspaces. Durations of 0 mean never.
type Configuration struct {
	// FullResyncInterval is the time between full resyncs. It cannot be 0.
	FullResyncInterval time.Duration
	// The next three are fields of actualstate.Timeouts.
	UnschedulablePatience time.Duration
	StopPatience          time.Duration
	TerminationPatience   time.Duration
	// MaxWorkspaces limits the agent's workspaces whose desired state is not terminated, MaxWorkspacesPerUser those
	// of one user.
	MaxWorkspaces        int
	MaxWorkspacesPerUser int
	// The next six are fields of workspace.AgePolicies.
	StopAfterRunning      time.Duration
	TerminateAfterStopped time.Duration
	MaxAge                time.Duration
	StopAfterIdle         time.Duration
	ExpiryWarning         time.Duration
	IdleCountsProcesses   bool
	// RelayTargets are reachable through the relay. They are sorted by name; nil for none.
	RelayTargets []RelayTarget
	Manifests    Manifests
	// StorageClass of the volumes of new workspaces. Empty for the cluster's default.
	StorageClass string
	// Defaults are the sizes of new workspaces that neither the request nor the template sets. None is above its maximum.
	Defaults workspace.Sizes
	// Maximums limit the sizes of new and changed workspaces. An empty quantity is no limit.
	Maximums workspace.Sizes
}

// Equal reports whether both are the same.
func (c Configuration) Equal(other Configuration) bool { return reflect.DeepEqual(c, other) }

// DefaultConfiguration is the configuration without settings.
func DefaultConfiguration() Configuration {
	return Configuration{
		FullResyncInterval:    DefaultFullResyncInterval,
		UnschedulablePatience: DefaultUnschedulablePatience,
		StopPatience:          DefaultStopPatience,
		TerminationPatience:   DefaultTerminationPatience,
		MaxWorkspaces:         Unlimited,
		MaxWorkspacesPerUser:  Unlimited,
		ExpiryWarning:         DefaultExpiryWarning,
		Manifests:             DefaultManifests(),
		Defaults:              workspace.DefaultSizes(),
	}
}

// Validate returns the fault invalid_argument with every invalid field.
func (c Configuration) Validate() error {
	var f invalid.Fields
	if c.FullResyncInterval < minDuration {
		f.Addf("full_resync_interval", "%s is less than %s", c.FullResyncInterval, minDuration)
	}
	for _, d := range []struct {
		path  string
		value time.Duration
	}{
		{"unschedulable_patience", c.UnschedulablePatience},
		{"stop_patience", c.StopPatience},
		{"termination_patience", c.TerminationPatience},
		{"stop_after_running", c.StopAfterRunning},
		{"terminate_after_stopped", c.TerminateAfterStopped},
		{"max_age", c.MaxAge},
		{"expiry_warning", c.ExpiryWarning},
	} {
		if d.value != 0 && d.value < minDuration {
			f.Addf(d.path, "%s is neither 0 (never) nor at least %s", d.value, minDuration)
		}
	}
	if c.StopAfterIdle != 0 && c.StopAfterIdle < workspace.MinStopAfterIdle {
		f.Addf("stop_after_idle", "%s is neither 0 (never) nor at least %s", c.StopAfterIdle, workspace.MinStopAfterIdle)
	}
	for _, l := range []struct {
		path  string
		value int
	}{{"max_workspaces", c.MaxWorkspaces}, {"max_workspaces_per_user", c.MaxWorkspacesPerUser}} {
		if l.value < Unlimited {
			f.Addf(l.path, "%d is neither %d (no limit) nor a number of workspaces", l.value, Unlimited)
		}
	}
	validateRelayTargets(&f, c.RelayTargets)
	c.Manifests.validate(&f)
	if c.StorageClass != "" && len(validation.IsDNS1123Subdomain(c.StorageClass)) > 0 {
		f.Addf("storage_class", "%.80q is not the name of a StorageClass", c.StorageClass)
	}
	workspace.ValidateSizes(&f, c.Defaults, c.Maximums)
	return f.Err("the agent's configuration")
}

// Timeouts limit how long a workspace may be unschedulable, stopping or terminating.
func (c Configuration) Timeouts() actualstate.Timeouts {
	return actualstate.Timeouts{
		Unschedulable: c.UnschedulablePatience, PodTermination: c.StopPatience, Termination: c.TerminationPatience,
	}
}

// AgePolicies stop and terminate workspaces after a time.
func (c Configuration) AgePolicies() workspace.AgePolicies {
	return workspace.AgePolicies{
		StopAfterRunning:      c.StopAfterRunning,
		TerminateAfterStopped: c.TerminateAfterStopped,
		MaxAge:                c.MaxAge,
		StopAfterIdle:         c.StopAfterIdle,
		IdleCountsProcesses:   c.IdleCountsProcesses,
		Warning:               c.ExpiryWarning,
	}
}
