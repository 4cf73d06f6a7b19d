package agent

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"time"

	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/invalid"
	"lockstep.internal/services/state/workspace"
)

// Defaults of an agent's configuration.
const (
	DefaultFullResyncInterval    = time.Hour
	DefaultUnschedulablePatience = 5 * time.Minute
	DefaultStopPatience          = 5 * time.Minute
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
	// UnschedulablePatience and StopPatience are fields of actualstate.PodTimeouts.
	UnschedulablePatience time.Duration
	StopPatience          time.Duration
	// MaxWorkspaces limits the agent's workspaces whose desired state is not terminated, MaxWorkspacesPerUser those
	// of one user.
	MaxWorkspaces        int
	MaxWorkspacesPerUser int
	// The next four are fields of workspace.AgePolicies.
	StopAfterRunning      time.Duration
	TerminateAfterStopped time.Duration
	MaxAge                time.Duration
	ExpiryWarning         time.Duration
	// RelayTargets are reachable through the relay. They are sorted by name; nil for none.
	RelayTargets []RelayTarget
}

// Equal reports whether both are the same.
func (c Configuration) Equal(other Configuration) bool { return reflect.DeepEqual(c, other) }

// DefaultConfiguration is the configuration without settings.
func DefaultConfiguration() Configuration {
	return Configuration{
		FullResyncInterval:    DefaultFullResyncInterval,
		UnschedulablePatience: DefaultUnschedulablePatience,
		StopPatience:          DefaultStopPatience,
		MaxWorkspaces:         Unlimited,
		MaxWorkspacesPerUser:  Unlimited,
		ExpiryWarning:         DefaultExpiryWarning,
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
		{"stop_after_running", c.StopAfterRunning},
		{"terminate_after_stopped", c.TerminateAfterStopped},
		{"max_age", c.MaxAge},
		{"expiry_warning", c.ExpiryWarning},
	} {
		if d.value != 0 && d.value < minDuration {
			f.Addf(d.path, "%s is neither 0 (never) nor at least %s", d.value, minDuration)
		}
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
	return f.Err("the agent's configuration")
}

// PodTimeouts limit how long a workspace may be unschedulable or stopping.
func (c Configuration) PodTimeouts() actualstate.PodTimeouts {
	return actualstate.PodTimeouts{Unschedulable: c.UnschedulablePatience, Termination: c.StopPatience}
}

// AgePolicies stop and terminate workspaces after a time.
func (c Configuration) AgePolicies() workspace.AgePolicies {
	return workspace.AgePolicies{
		StopAfterRunning:      c.StopAfterRunning,
		TerminateAfterStopped: c.TerminateAfterStopped,
		MaxAge:                c.MaxAge,
		Warning:               c.ExpiryWarning,
	}
}

// Settings are what operators have set, as stored. A nil field has its default.
type Settings struct {
	FullResyncInterval    *Milliseconds `json:"full_resync_interval_ms,omitempty"`
	UnschedulablePatience *Milliseconds `json:"unschedulable_patience_ms,omitempty"`
	StopPatience          *Milliseconds `json:"stop_patience_ms,omitempty"`
	MaxWorkspaces         *int          `json:"max_workspaces,omitempty"`
	MaxWorkspacesPerUser  *int          `json:"max_workspaces_per_user,omitempty"`
	StopAfterRunning      *Milliseconds `json:"stop_after_running_ms,omitempty"`
	TerminateAfterStopped *Milliseconds `json:"terminate_after_stopped_ms,omitempty"`
	MaxAge                *Milliseconds `json:"max_age_ms,omitempty"`
	ExpiryWarning         *Milliseconds `json:"expiry_warning_ms,omitempty"`
	// RelayTargets are replaced as a whole. An empty list removes all.
	RelayTargets *[]RelayTarget `json:"relay_targets,omitempty"`
}

// Change returns the settings with the fields that the change sets, and whether the configuration differs.
// The fault invalid_argument names every invalid field.
func (s Settings) Change(change Settings) (Settings, bool, error) {
	after := s.Merge(change)
	if err := after.Configuration().Validate(); err != nil {
		return s, false, err
	}
	return after, !after.Configuration().Equal(s.Configuration()), nil
}

// Merge returns the settings with the fields that the change sets.
func (s Settings) Merge(change Settings) Settings {
	replace(&s.FullResyncInterval, change.FullResyncInterval)
	replace(&s.UnschedulablePatience, change.UnschedulablePatience)
	replace(&s.StopPatience, change.StopPatience)
	replace(&s.MaxWorkspaces, change.MaxWorkspaces)
	replace(&s.MaxWorkspacesPerUser, change.MaxWorkspacesPerUser)
	replace(&s.StopAfterRunning, change.StopAfterRunning)
	replace(&s.TerminateAfterStopped, change.TerminateAfterStopped)
	replace(&s.MaxAge, change.MaxAge)
	replace(&s.ExpiryWarning, change.ExpiryWarning)
	replace(&s.RelayTargets, change.RelayTargets)
	return s
}

func replace[T any](value **T, with *T) {
	if with != nil {
		*value = with
	}
}

// Configuration returns the configuration with these settings.
func (s Settings) Configuration() Configuration {
	c := DefaultConfiguration()
	for _, d := range []struct {
		value *time.Duration
		set   *Milliseconds
	}{
		{&c.FullResyncInterval, s.FullResyncInterval},
		{&c.UnschedulablePatience, s.UnschedulablePatience},
		{&c.StopPatience, s.StopPatience},
		{&c.StopAfterRunning, s.StopAfterRunning},
		{&c.TerminateAfterStopped, s.TerminateAfterStopped},
		{&c.MaxAge, s.MaxAge},
		{&c.ExpiryWarning, s.ExpiryWarning},
	} {
		if d.set != nil {
			*d.value = time.Duration(*d.set)
		}
	}
	if s.MaxWorkspaces != nil {
		c.MaxWorkspaces = *s.MaxWorkspaces
	}
	if s.MaxWorkspacesPerUser != nil {
		c.MaxWorkspacesPerUser = *s.MaxWorkspacesPerUser
	}
	if s.RelayTargets != nil {
		c.RelayTargets = sortedTargets(*s.RelayTargets)
	}
	return c
}

// Milliseconds is a duration stored as a whole number.
type Milliseconds time.Duration

// MarshalJSON writes the number of milliseconds, rounded down.
func (m Milliseconds) MarshalJSON() ([]byte, error) {
	return strconv.AppendInt(nil, time.Duration(m).Milliseconds(), 10), nil
}

// UnmarshalJSON reads a number of milliseconds.
func (m *Milliseconds) UnmarshalJSON(raw []byte) error {
	var n int64
	if err := json.Unmarshal(raw, &n); err != nil {
		return fmt.Errorf("not a number of milliseconds: %w", err)
	}
	*m = Milliseconds(time.Duration(n) * time.Millisecond)
	return nil
}
