package domain

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"time"

	"lockstep.internal/services/state/actualstate"
)

// Defaults of an agent's configuration.
const (
	DefaultFullResyncInterval    = time.Hour
	DefaultUnschedulablePatience = 5 * time.Minute
	DefaultStopPatience          = 5 * time.Minute
	DefaultExpiryWarning         = 15 * time.Minute
	// Unlimited is the limit that is none.
	Unlimited = -1
)

// leastDuration is the shortest duration that can be set: nothing is looked at more often.
const leastDuration = time.Second

// AgentConfiguration is what holds for one agent and its workspaces. Durations of 0 mean never, limits of Unlimited no limit.
type AgentConfiguration struct {
	// FullResyncInterval is the time between full resyncs, of which there is no never.
	FullResyncInterval time.Duration
	// UnschedulablePatience and StopPatience are those of actualstate.Patience.
	UnschedulablePatience time.Duration
	StopPatience          time.Duration
	// MaxWorkspaces is how many workspaces that are not to be terminated the agent may have, MaxWorkspacesPerUser how many of them one user.
	MaxWorkspaces        int
	MaxWorkspacesPerUser int
	// The rest are those of AgePolicies.
	StopAfterRunning      time.Duration
	TerminateAfterStopped time.Duration
	MaxAge                time.Duration
	ExpiryWarning         time.Duration
	// RelayTargets are what may be reached through the relay, in the order of their names; nil for none.
	RelayTargets []RelayTarget
}

// Equal says whether both are the same.
func (c AgentConfiguration) Equal(other AgentConfiguration) bool { return reflect.DeepEqual(c, other) }

// DefaultAgentConfiguration holds where nothing is set.
func DefaultAgentConfiguration() AgentConfiguration {
	return AgentConfiguration{
		FullResyncInterval: DefaultFullResyncInterval, UnschedulablePatience: DefaultUnschedulablePatience, StopPatience: DefaultStopPatience,
		MaxWorkspaces: Unlimited, MaxWorkspacesPerUser: Unlimited, ExpiryWarning: DefaultExpiryWarning,
	}
}

// Validate returns the fault invalid_argument with everything that is wrong.
func (c AgentConfiguration) Validate() error {
	var f faults
	if c.FullResyncInterval < leastDuration {
		f.addf("full_resync_interval", "%s is less than %s", c.FullResyncInterval, leastDuration)
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
		if d.value != 0 && d.value < leastDuration {
			f.addf(d.path, "%s is neither 0, for never, nor %s or more", d.value, leastDuration)
		}
	}
	for _, l := range []struct {
		path  string
		value int
	}{{"max_workspaces", c.MaxWorkspaces}, {"max_workspaces_per_user", c.MaxWorkspacesPerUser}} {
		if l.value < Unlimited {
			f.addf(l.path, "%d is neither %d, for no limit, nor a number of workspaces", l.value, Unlimited)
		}
	}
	validateRelayTargets(&f, c.RelayTargets)
	return f.err("the agent's configuration")
}

// Patience is how long a workspace may be stuck.
func (c AgentConfiguration) Patience() actualstate.Patience {
	return actualstate.Patience{Unschedulable: c.UnschedulablePatience, Stop: c.StopPatience}
}

// AgePolicies are what ends workspaces that nobody ends.
func (c AgentConfiguration) AgePolicies() AgePolicies {
	return AgePolicies{StopAfterRunning: c.StopAfterRunning, TerminateAfterStopped: c.TerminateAfterStopped, MaxAge: c.MaxAge, Warning: c.ExpiryWarning}
}

// AgentSettings is what operators have set of an agent's configuration, and how it is stored: what is nil has its default.
type AgentSettings struct {
	FullResyncInterval    *Milliseconds `json:"full_resync_interval_ms,omitempty"`
	UnschedulablePatience *Milliseconds `json:"unschedulable_patience_ms,omitempty"`
	StopPatience          *Milliseconds `json:"stop_patience_ms,omitempty"`
	MaxWorkspaces         *int          `json:"max_workspaces,omitempty"`
	MaxWorkspacesPerUser  *int          `json:"max_workspaces_per_user,omitempty"`
	StopAfterRunning      *Milliseconds `json:"stop_after_running_ms,omitempty"`
	TerminateAfterStopped *Milliseconds `json:"terminate_after_stopped_ms,omitempty"`
	MaxAge                *Milliseconds `json:"max_age_ms,omitempty"`
	ExpiryWarning         *Milliseconds `json:"expiry_warning_ms,omitempty"`
	// RelayTargets are replaced as a whole, also by none.
	RelayTargets *[]RelayTarget `json:"relay_targets,omitempty"`
}

// Merge is the settings after a change of those that the change has.
func (s AgentSettings) Merge(change AgentSettings) AgentSettings {
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

// Configuration is what holds with these settings.
func (s AgentSettings) Configuration() AgentConfiguration {
	c := DefaultAgentConfiguration()
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

// Milliseconds is a duration that is stored as a whole number of them.
type Milliseconds time.Duration

// MarshalJSON writes the number of milliseconds; what is less than one is lost.
func (m Milliseconds) MarshalJSON() ([]byte, error) {
	return strconv.AppendInt(nil, time.Duration(m).Milliseconds(), 10), nil
}

// UnmarshalJSON reads a number of milliseconds.
func (m *Milliseconds) UnmarshalJSON(raw []byte) error {
	var n int64
	if err := json.Unmarshal(raw, &n); err != nil {
		return fmt.Errorf("a number of milliseconds: %w", err)
	}
	*m = Milliseconds(time.Duration(n) * time.Millisecond)
	return nil
}
