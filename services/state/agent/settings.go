package agent

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep.internal/services/state/invalid"
	"lockstep.internal/services/state/workspace"
)

// Settings are what operators have set, as stored: for an agent, or for all agents of the cell. A nil field has the
// value of the cell, or its default.
type Settings struct {
	FullResyncInterval    *Milliseconds `json:"full_resync_interval_ms,omitempty"`
	UnschedulablePatience *Milliseconds `json:"unschedulable_patience_ms,omitempty"`
	StopPatience          *Milliseconds `json:"stop_patience_ms,omitempty"`
	TerminationPatience   *Milliseconds `json:"termination_patience_ms,omitempty"`
	MaxWorkspaces         *int          `json:"max_workspaces,omitempty"`
	MaxWorkspacesPerUser  *int          `json:"max_workspaces_per_user,omitempty"`
	StopAfterRunning      *Milliseconds `json:"stop_after_running_ms,omitempty"`
	TerminateAfterStopped *Milliseconds `json:"terminate_after_stopped_ms,omitempty"`
	MaxAge                *Milliseconds `json:"max_age_ms,omitempty"`
	StopAfterIdle         *Milliseconds `json:"stop_after_idle_ms,omitempty"`
	ExpiryWarning         *Milliseconds `json:"expiry_warning_ms,omitempty"`
	// RelayTargets are replaced as a whole, as all lists. An empty list removes all.
	RelayTargets      *[]RelayTarget `json:"relay_targets,omitempty"`
	IngressPeers      *[]string      `json:"ingress_peers,omitempty"`
	DNSPeers          *[]string      `json:"dns_peers,omitempty"`
	PrivateRanges     *[]string      `json:"private_ranges,omitempty"`
	EgressAllowed     *[]string      `json:"egress_allowed,omitempty"`
	ProgressDeadline  *Milliseconds  `json:"progress_deadline_ms,omitempty"`
	ResourceQuota     *bool          `json:"resource_quota,omitempty"`
	StorageClass      *string        `json:"storage_class,omitempty"`
	DefaultCPU        *string        `json:"default_cpu,omitempty"`
	DefaultMemory     *string        `json:"default_memory,omitempty"`
	DefaultVolumeSize *string        `json:"default_volume_size,omitempty"`
	MaxCPU            *string        `json:"max_cpu,omitempty"`
	MaxMemory         *string        `json:"max_memory,omitempty"`
	MaxVolumeSize     *string        `json:"max_volume_size,omitempty"`
	AgentImage        *string        `json:"agent_image,omitempty"`
	SSHAuthorities    *[]string      `json:"ssh_authorities,omitempty"`
	OwnerAccess       *bool          `json:"owner_access,omitempty"`

	IdleCountsProcesses *bool `json:"idle_counts_processes,omitempty"`
}

// Layers are the settings of an agent, and those of the cell, which it overrides.
type Layers struct {
	Cell, Agent Settings
}

// Configuration returns the configuration of the agent.
func (l Layers) Configuration() Configuration { return l.Cell.Merge(l.Agent).Configuration() }

// Maximums returns the maximums of the agent's workspaces, with their owners. name is the agent's.
func (l Layers) Maximums(name string) workspace.Maximums {
	maximum := func(cell, agent *string) workspace.Maximum {
		switch {
		case agent != nil:
			return workspace.Maximum{Quantity: *agent, Owner: "agent " + strconv.Quote(name)}
		case cell != nil:
			return workspace.Maximum{Quantity: *cell, Owner: "the cell"}
		default:
			return workspace.Maximum{}
		}
	}
	return workspace.Maximums{
		CPU:        maximum(l.Cell.MaxCPU, l.Agent.MaxCPU),
		Memory:     maximum(l.Cell.MaxMemory, l.Agent.MaxMemory),
		VolumeSize: maximum(l.Cell.MaxVolumeSize, l.Agent.MaxVolumeSize),
	}
}

// Change returns the layers after a change of the agent's settings: those named in reset get the value of the cell,
// then the change sets its fields. It also returns whether the configuration differs. The fault invalid_argument names
// every invalid field.
func (l Layers) Change(change Settings, reset ...string) (Layers, bool, error) {
	after := l
	var err error
	if after.Agent, err = l.Agent.without(reset); err != nil {
		return l, false, err
	}
	after.Agent = after.Agent.Merge(change)
	if err := after.Configuration().Validate(); err != nil {
		return l, false, err
	}
	return after, !after.Configuration().Equal(l.Configuration()), nil
}

// without returns the settings without the named ones. The fault invalid_argument names every unknown one.
func (s Settings) without(names []string) (Settings, error) {
	var f invalid.Fields
	value, known := reflect.ValueOf(&s).Elem(), settingNames()
	for _, name := range names {
		if at := slices.Index(known, name); at >= 0 {
			value.Field(at).SetZero()
		} else {
			f.Addf("reset", "%.80q is not a setting; use one of %s", name, strings.Join(known, ", "))
		}
	}
	return s, f.Err("the change of the agent's configuration")
}

// Names returns the names of the settings that are set.
func (s Settings) Names() []string {
	value := reflect.ValueOf(s)
	var names []string
	for i, name := range settingNames() {
		if !value.Field(i).IsNil() {
			names = append(names, name)
		}
	}
	return names
}

// settingNames returns the names of the fields of Settings, without units.
func settingNames() []string {
	t := reflect.TypeFor[Settings]()
	names := make([]string, t.NumField())
	for i := range names {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		names[i] = strings.TrimSuffix(name, "_ms")
	}
	return names
}

// Merge returns the settings with the fields that the change sets.
func (s Settings) Merge(change Settings) Settings {
	value, with := reflect.ValueOf(&s).Elem(), reflect.ValueOf(change)
	for i := range value.NumField() {
		if field := with.Field(i); !field.IsNil() {
			value.Field(i).Set(field)
		}
	}
	return s
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
		{&c.TerminationPatience, s.TerminationPatience},
		{&c.StopAfterRunning, s.StopAfterRunning},
		{&c.TerminateAfterStopped, s.TerminateAfterStopped},
		{&c.MaxAge, s.MaxAge},
		{&c.StopAfterIdle, s.StopAfterIdle},
		{&c.ExpiryWarning, s.ExpiryWarning},
		{&c.Manifests.ProgressDeadline, s.ProgressDeadline},
	} {
		if d.set != nil {
			*d.value = time.Duration(*d.set)
		}
	}
	set(&c.MaxWorkspaces, s.MaxWorkspaces)
	set(&c.MaxWorkspacesPerUser, s.MaxWorkspacesPerUser)
	if s.RelayTargets != nil {
		c.RelayTargets = sortedTargets(*s.RelayTargets)
	}
	setList(&c.Manifests.IngressPeers, s.IngressPeers)
	setList(&c.Manifests.DNSPeers, s.DNSPeers)
	setList(&c.Manifests.PrivateRanges, s.PrivateRanges)
	setList(&c.Manifests.EgressAllowed, s.EgressAllowed)
	set(&c.Manifests.ResourceQuota, s.ResourceQuota)
	set(&c.Manifests.OwnerAccess, s.OwnerAccess)
	set(&c.IdleCountsProcesses, s.IdleCountsProcesses)
	set(&c.Manifests.AgentImage, s.AgentImage)
	setList(&c.Manifests.SSHAuthorities, s.SSHAuthorities)
	set(&c.StorageClass, s.StorageClass)
	set(&c.Defaults.CPU, s.DefaultCPU)
	set(&c.Defaults.Memory, s.DefaultMemory)
	set(&c.Defaults.VolumeSize, s.DefaultVolumeSize)
	set(&c.Maximums.CPU, s.MaxCPU)
	set(&c.Maximums.Memory, s.MaxMemory)
	set(&c.Maximums.VolumeSize, s.MaxVolumeSize)
	c.Defaults = c.Defaults.AtMost(c.Maximums)
	return c
}

func set[T any](value, to *T) {
	if to != nil {
		*value = *to
	}
}

// setList sets an empty list to nil.
func setList(value, to *[]string) {
	set(value, to)
	if len(*value) == 0 {
		*value = nil
	}
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
