package api

import (
	"maps"
	"slices"
	"strings"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/services/runners/runner"
)

var types = map[runner.Type]runnersv1.RunnerType{
	runner.InstanceType: runnersv1.RunnerType_RUNNER_TYPE_INSTANCE,
	runner.GroupType:    runnersv1.RunnerType_RUNNER_TYPE_GROUP,
	runner.ProjectType:  runnersv1.RunnerType_RUNNER_TYPE_PROJECT,
}

var statuses = map[runner.Status]runnersv1.RunnerStatus{
	runner.Online:         runnersv1.RunnerStatus_RUNNER_STATUS_ONLINE,
	runner.Offline:        runnersv1.RunnerStatus_RUNNER_STATUS_OFFLINE,
	runner.Stale:          runnersv1.RunnerStatus_RUNNER_STATUS_STALE,
	runner.NeverContacted: runnersv1.RunnerStatus_RUNNER_STATUS_NEVER_CONTACTED,
}

// typeOf converts a type of a request.
func typeOf(wanted runnersv1.RunnerType) (runner.Type, bool) {
	for kind, message := range types {
		if message == wanted {
			return kind, true
		}
	}
	return "", false
}

// settings are those of a request.
type settings = runnersv1.RunnerSettings

// pathProjects is the path of RunnerSettings that is no setting of the domain, but links.
const pathProjects = "project_ids"

// setters sets each other path of RunnerSettings.
var setters = map[string]func(*runner.Settings, *settings){
	"description":      func(r *runner.Settings, m *settings) { r.Description = m.GetDescription() },
	"maintenance_note": func(r *runner.Settings, m *settings) { r.MaintenanceNote = m.GetMaintenanceNote() },
	"tags":             func(r *runner.Settings, m *settings) { r.Tags = m.GetTags() },
	"run_untagged":     func(r *runner.Settings, m *settings) { r.RunUntagged = m.GetRunUntagged() },
	"locked":           func(r *runner.Settings, m *settings) { r.Locked = m.GetLocked() },
	"protected":        func(r *runner.Settings, m *settings) { r.Protected = m.GetProtected() },
	"paused":           func(r *runner.Settings, m *settings) { r.Paused = m.GetPaused() },
	"maximum_timeout":  func(r *runner.Settings, m *settings) { r.MaximumTimeout = m.GetMaximumTimeout().AsDuration() },
	"user_ids":         func(r *runner.Settings, m *settings) { r.UserIDs = m.GetUserIds() },
	"group_ids":        func(r *runner.Settings, m *settings) { r.GroupIDs = m.GetGroupIds() },
}

// editOf returns the change of those settings that the paths name.
func editOf(m *settings, paths []string) (func(r *runner.Settings), error) {
	if timeout := m.GetMaximumTimeout(); timeout != nil {
		if err := timeout.CheckValid(); err != nil {
			return nil, fault.Wrap(err, errcode.InvalidArgument, "maximum_timeout: not a duration").
				With("field", "maximum_timeout")
		}
	}
	for _, path := range paths {
		if _, known := setters[path]; !known {
			return nil, fault.New(errcode.InvalidArgument, "update_mask: %q is not one of %s", path, settingNames()).
				With("field", "update_mask")
		}
	}
	return func(r *runner.Settings) {
		for _, path := range paths {
			setters[path](r, m)
		}
	}, nil
}

// settingNames returns all paths of RunnerSettings, for messages.
func settingNames() string {
	names := slices.Sorted(maps.Keys(setters))
	return strings.Join(append(names, pathProjects), ", ")
}
