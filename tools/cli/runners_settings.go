package cli

import (
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/tools/client"
)

// runnerSettings are the flags for the settings of a runner.
type runnerSettings struct {
	message                 runnersv1.RunnerSettings
	timeout                 time.Duration
	projects, users, groups []string
}

// settingFields has the field of RunnerSettings for each flag.
func settingFields() map[string]string {
	return map[string]string{
		"description": "description", "maintenance-note": "maintenance_note", "tags": "tags",
		"run-untagged": "run_untagged", "locked": "locked", "protected": "protected", "paused": "paused",
		"maximum-timeout": "maximum_timeout", "project": "project_ids", "serve-user": "user_ids",
		"serve-group": "group_ids",
	}
}

func (s *runnerSettings) flags(a *app, c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&s.message.Description, "description", "", "name of the runner for people")
	f.StringVar(&s.message.MaintenanceNote, "maintenance-note", "", "note for those who maintain it")
	f.StringSliceVar(&s.message.Tags, "tags", nil, "tags, such as docker,arm64: the runner takes jobs whose tags it has")
	f.BoolVar(&s.message.RunUntagged, "run-untagged", false, "take jobs without tags, too")
	f.BoolVar(&s.message.Locked, "locked", false, "a runner of projects cannot be given to further projects")
	f.BoolVar(&s.message.Protected, "protected", false, "take protected jobs only")
	f.BoolVar(&s.message.Paused, "paused", false, "take no jobs")
	durationFlag(c, &s.timeout, "maximum-timeout", 0, "longest time of a job, such as 2h; default: that of the job")
	a.namesFlag(c, &s.projects, "project", "project of a runner of projects; can be repeated", a.projectWords)
	a.namesFlag(c, &s.users, "serve-user", "user whom the runner serves, for admission; can be repeated; default: all",
		a.userWords)
	a.namesFlag(c, &s.groups, "serve-group", "group that the runner serves, for admission; can be repeated; default: all",
		a.groupWords)
}

// read returns the settings of the flags.
func (s *runnerSettings) read(names *names) (*runnersv1.RunnerSettings, error) {
	if s.timeout < 0 {
		return nil, fault.New(errcode.InvalidArgument, "--maximum-timeout %s must not be negative", s.timeout)
	}
	if s.timeout > 0 {
		s.message.MaximumTimeout = durationpb.New(s.timeout)
	}
	for _, list := range []struct {
		texts []string
		id    func(string) (int64, error)
		to    *[]int64
	}{
		{s.projects, names.projectID, &s.message.ProjectIds},
		{s.users, names.userID, &s.message.UserIds},
		{s.groups, names.groupID, &s.message.GroupIds},
	} {
		for _, text := range list.texts {
			if text == "" {
				continue // an empty flag makes the list empty
			}
			id, err := list.id(text)
			if err != nil {
				return nil, err
			}
			*list.to = append(*list.to, id)
		}
	}
	return &s.message, nil
}

func (a *app) runnerCreate() *cobra.Command {
	var settings runnerSettings
	var kind, group string
	c := &cobra.Command{
		Use: "create", Short: "Create a runner and print its token once", Args: exactly(),
		Long: `Create a runner and print its token once, with the commands that connect a gitlab-runner. Runners of the
instance take jobs of all projects of the cell, those of a group jobs of the projects in it and below it, and those of
projects jobs of the projects that you name. Without --type, it is group with --group and project with --project.`,
		Example: `  lockstep runners create --project shop/web --tags shell --description build-host
  lockstep runners create --type instance --run-untagged --maximum-timeout 2h`,
		RunE: func(c *cobra.Command, _ []string) error {
			switch {
			case kind != "":
			case group != "":
				kind = "group"
			case len(settings.projects) > 0:
				kind = "project"
			default:
				return usage(c, "set --type, --group or --project")
			}
			request := &runnersv1.CreateRunnerRequest{}
			var err error
			if request.Type, err = oneEnum[runnersv1.RunnerType]("--type", kind, runnerTypePrefix,
				runnersv1.RunnerType_value); err != nil {
				return err
			}
			if err := checkRunnerScope(request.GetType(), group != "", len(settings.projects) > 0); err != nil {
				return err
			}
			api, names, err := a.runnersAndNames(c.Context())
			if err != nil {
				return err
			}
			if group != "" {
				if request.GroupId, err = names.groupID(group); err != nil {
					return err
				}
			}
			if request.Settings, err = settings.read(names); err != nil {
				return err
			}
			response, err := api.Runners.CreateRunner(c.Context(), connect.NewRequest(request))
			if err != nil {
				return err
			}
			if a.output != outputTable {
				return a.print(response.Msg, table{})
			}
			return a.printRunnerToken(api, "created", response.Msg.GetRunner().GetId(), response.Msg.GetToken())
		},
	}
	enumValueFlag(c, &kind, "type", "type", enumWords(runnerTypePrefix, runnersv1.RunnerType_value))
	a.nameFlag(c, &group, "group", "group of a runner of a group", a.groupWords)
	settings.flags(a, c)
	return c
}

// checkRunnerScope checks that --group and --project are those of the type.
func checkRunnerScope(kind runnersv1.RunnerType, group, projects bool) error {
	const (
		instance = runnersv1.RunnerType_RUNNER_TYPE_INSTANCE
		ofGroup  = runnersv1.RunnerType_RUNNER_TYPE_GROUP
		project  = runnersv1.RunnerType_RUNNER_TYPE_PROJECT
	)
	switch {
	case kind == ofGroup && !group:
		return fault.New(errcode.InvalidArgument, "a runner of a group needs --group")
	case kind == project && !projects:
		return fault.New(errcode.InvalidArgument, "a runner of projects needs --project")
	case kind == instance && (group || projects), kind == ofGroup && projects, kind == project && group:
		return fault.New(errcode.InvalidArgument,
			"--group is for runners of type group, --project for those of type project: this one is of type %s",
			enumWord(kind.String(), runnerTypePrefix))
	default:
		return nil
	}
}

func (a *app) runnerUpdate() *cobra.Command {
	var settings runnerSettings
	c := a.runnerCommand("update", "Change the settings of a runner",
		"Change the settings of a runner. Settings without a flag keep their value. A list replaces the one before; an "+
			"empty value makes it empty.",
		"  lockstep runners update build-host --tags docker,arm64 --run-untagged=false",
		func(c *cobra.Command, api *client.Runners, id int64) error {
			names, err := a.namesOfAPI(c.Context())
			if err != nil {
				return err
			}
			read, err := settings.read(names)
			if err != nil {
				return err
			}
			return a.updateRunner(c, api, id, read, changedSettings(c)...)
		})
	settings.flags(a, c)
	run := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(changedSettings(c)) == 0 {
			return usage(c, "nothing to change, want one of %s", strings.Join(settingFlags(c), ", "))
		}
		return run(c, args)
	}
	return c
}

// changedSettings returns the fields of the flags that are set.
func changedSettings(c *cobra.Command) []string {
	var paths []string
	c.Flags().Visit(func(f *pflag.Flag) {
		if path, is := settingFields()[f.Name]; is {
			paths = append(paths, path)
		}
	})
	return paths
}

func settingFlags(c *cobra.Command) []string {
	var flags []string
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if _, is := settingFields()[f.Name]; is {
			flags = append(flags, "--"+f.Name)
		}
	})
	return flags
}

func (a *app) runnerPause(paused bool) *cobra.Command {
	use, short := "resume", "Let a runner take jobs again"
	if paused {
		use, short = "pause", "Let a runner take no more jobs"
	}
	long := short + "."
	if paused {
		long += " Its running jobs continue."
	}
	return a.runnerCommand(use, short, long, "  lockstep runners "+use+" build-host",
		func(c *cobra.Command, api *client.Runners, id int64) error {
			return a.updateRunner(c, api, id, &runnersv1.RunnerSettings{Paused: paused}, "paused")
		})
}

func (a *app) updateRunner(
	c *cobra.Command, api *client.Runners, id int64, settings *runnersv1.RunnerSettings, paths ...string,
) error {
	response, err := api.Runners.UpdateRunner(c.Context(), connect.NewRequest(&runnersv1.UpdateRunnerRequest{
		Id: id, Settings: settings, UpdateMask: &fieldmaskpb.FieldMask{Paths: paths},
	}))
	if err != nil {
		return err
	}
	names, err := a.namesOfAPI(c.Context())
	if err != nil {
		return err
	}
	return a.print(response.Msg, runnerTable(names, response.Msg.GetRunner()))
}
