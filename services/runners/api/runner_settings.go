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

// setters sets each path of RunnerSettings.
var setters = map[string]func(*runner.Runner, *settings){
	"description":      func(r *runner.Runner, m *settings) { r.Description = m.GetDescription() },
	"maintenance_note": func(r *runner.Runner, m *settings) { r.MaintenanceNote = m.GetMaintenanceNote() },
	"tags":             func(r *runner.Runner, m *settings) { r.Tags = m.GetTags() },
	"run_untagged":     func(r *runner.Runner, m *settings) { r.RunUntagged = m.GetRunUntagged() },
	"locked":           func(r *runner.Runner, m *settings) { r.Locked = m.GetLocked() },
	"protected":        func(r *runner.Runner, m *settings) { r.Protected = m.GetProtected() },
	"paused":           func(r *runner.Runner, m *settings) { r.Paused = m.GetPaused() },
	"maximum_timeout":  func(r *runner.Runner, m *settings) { r.MaximumTimeout = m.GetMaximumTimeout().AsDuration() },
	"project_ids":      func(r *runner.Runner, m *settings) { r.ProjectIDs = m.GetProjectIds() },
	"user_ids":         func(r *runner.Runner, m *settings) { r.UserIDs = m.GetUserIds() },
	"group_ids":        func(r *runner.Runner, m *settings) { r.GroupIDs = m.GetGroupIds() },
}

// changeOf returns the change of a runner to the settings that the paths name.
func changeOf(m *settings, paths []string) (func(r *runner.Runner), error) {
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
	return func(r *runner.Runner) {
		for _, path := range paths {
			setters[path](r, m)
		}
	}, nil
}

func settingNames() string { return strings.Join(slices.Sorted(maps.Keys(setters)), ", ") }
