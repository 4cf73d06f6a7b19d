package cli

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/trace"
)

const (
	runnerTypePrefix   = "RUNNER_TYPE_"
	runnerStatusPrefix = "RUNNER_STATUS_"
)

func (a *app) runners() *cobra.Command {
	c := group("runners", "Create, show, pause and delete runners of CI jobs", a.runnerCreate(), a.runnerList(),
		a.runnerGet(), a.runnerPause(true), a.runnerPause(false), a.runnerUpdate(), a.runnerDelete(), a.runnerResetToken(),
		a.runnersInit())
	c.Aliases = []string{"runner"}
	return c
}

const runnerArgument = "RUNNER is the id of a runner, or its description if only one runner has it."

// runnerCommand returns a command about one runner. run gets its id.
func (a *app) runnerCommand(
	use, short, long, example string,
	run func(c *cobra.Command, api *client.Runners, id int64) error,
) *cobra.Command {
	if long == "" {
		long = short + "."
	}
	return &cobra.Command{
		Use: use + " RUNNER", Short: short, Args: exactly("RUNNER"), ValidArgsFunction: a.completeRunners,
		Long: long + "\n" + runnerArgument, Example: example,
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.runnersAPI()
			if err != nil {
				return err
			}
			id, err := runnerID(c.Context(), api, args[0])
			if err != nil {
				return err
			}
			return run(c, api, id)
		},
	}
}

// runnerID returns the id of a runner by its id or description.
func runnerID(ctx context.Context, api *client.Runners, text string) (int64, error) {
	return find("runner", text, func() ([]named, error) {
		found, err := listRunners(ctx, api, &runnersv1.ListRunnersRequest{})
		out := make([]named, 0, len(found.GetRunners()))
		for _, r := range found.GetRunners() {
			out = append(out, named{id: r.GetId(), path: trace.Line(r.GetSettings().GetDescription())})
		}
		return out, err
	})
}

func listRunners(
	ctx context.Context, api *client.Runners, request *runnersv1.ListRunnersRequest,
) (*runnersv1.ListRunnersResponse, error) {
	all, _, err := readPages(0, func(size int32, token string) ([]*runnersv1.Runner, string, error) {
		response, err := api.Runners.ListRunners(ctx, connect.NewRequest(&runnersv1.ListRunnersRequest{
			ProjectId: request.GetProjectId(), Type: request.GetType(), Status: request.GetStatus(),
			Tags: request.GetTags(), PageSize: size, PageToken: token,
		}))
		if err != nil {
			return nil, "", err
		}
		return response.Msg.GetRunners(), response.Msg.GetNextPageToken(), nil
	})
	return &runnersv1.ListRunnersResponse{Runners: all}, err
}

func (a *app) runnerList() *cobra.Command {
	request := &runnersv1.ListRunnersRequest{}
	var project, kind, status string
	c := &cobra.Command{
		Use: "list", Short: "List the runners that you can see", Args: exactly(),
		Example: "  lockstep runners list\n  lockstep runners list --project shop/web --status online --tags docker",
		RunE: func(c *cobra.Command, _ []string) error {
			var err error
			if request.Type, err = oneEnum[runnersv1.RunnerType]("--type", kind, runnerTypePrefix,
				runnersv1.RunnerType_value); err != nil {
				return err
			}
			if request.Status, err = oneEnum[runnersv1.RunnerStatus]("--status", status, runnerStatusPrefix,
				runnersv1.RunnerStatus_value); err != nil {
				return err
			}
			api, names, err := a.runnersAndNames(c.Context())
			if err != nil {
				return err
			}
			if request.ProjectId, err = names.projectID(project); err != nil {
				return err
			}
			found, err := listRunners(c.Context(), api, request)
			if err != nil {
				return err
			}
			return a.print(found, runnerTable(names, found.GetRunners()...))
		},
	}
	a.projectFlag(c, &project, "project", "only runners that may take jobs of this project")
	enumValueFlag(c, &kind, "type", "only this type", enumWords(runnerTypePrefix, runnersv1.RunnerType_value))
	enumValueFlag(c, &status, "status", "only this status", enumWords(runnerStatusPrefix, runnersv1.RunnerStatus_value))
	c.Flags().StringSliceVar(&request.Tags, "tags", nil, "only runners with all of these tags, such as docker,arm64")
	return c
}

// enumValueFlag adds a flag for one of some words.
func enumValueFlag(c *cobra.Command, to *string, flag, usage string, words []string) {
	c.Flags().StringVar(to, flag, "", usage+": "+strings.Join(words, ", "))
	_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// oneEnum parses a flag for an enum; "" is its zero value.
func oneEnum[T ~int32](flag, text, prefix string, values map[string]int32) (T, error) {
	if text == "" {
		return 0, nil
	}
	parsed, err := enumFlag[T](flag, []string{text}, prefix, values)
	if err != nil {
		return 0, err
	}
	return parsed[0], nil
}

func runnerTable(names *names, runners ...*runnersv1.Runner) table {
	t := table{header: []string{"ID", "DESCRIPTION", "TYPE", "SERVES", "TAGS", "STATUS", "CONTACTED", "PAUSED"}}
	for _, r := range runners {
		t.rows = append(t.rows, []string{
			strconv.FormatInt(r.GetId(), 10),
			trace.Line(r.GetSettings().GetDescription()),
			enumWord(r.GetType().String(), runnerTypePrefix),
			runnerServes(names, r),
			trace.Line(runnerTags(r.GetSettings())),
			enumWord(r.GetStatus().String(), runnerStatusPrefix),
			age(r.GetContactedAt()),
			yesOrEmpty(r.GetSettings().GetPaused()),
		})
	}
	return t
}

// runnerServes returns whose jobs a runner takes.
func runnerServes(names *names, r *runnersv1.Runner) string {
	switch r.GetType() {
	case runnersv1.RunnerType_RUNNER_TYPE_GROUP:
		return names.group(r.GetGroupId())
	case runnersv1.RunnerType_RUNNER_TYPE_PROJECT:
		return joined(r.GetSettings().GetProjectIds(), names.project)
	default:
		return "all"
	}
}

func joined(ids []int64, name func(int64) string) string {
	texts := make([]string, 0, len(ids))
	for _, id := range ids {
		texts = append(texts, name(id))
	}
	return strings.Join(texts, ", ")
}

// runnerTags returns the tags, and whether jobs without tags are taken, too.
func runnerTags(s *runnersv1.RunnerSettings) string {
	tags := strings.Join(s.GetTags(), ",")
	switch {
	case !s.GetRunUntagged():
		return tags
	case tags == "":
		return "untagged jobs only"
	default:
		return tags + " and untagged jobs"
	}
}

func (a *app) runnerGet() *cobra.Command {
	return a.runnerCommand("get", "Show one runner and its managers",
		"Show one runner and its managers: each is a process of gitlab-runner that uses the token of the runner.",
		"  lockstep runners get 12\n  lockstep runners get build-host",
		func(c *cobra.Command, api *client.Runners, id int64) error {
			response, err := api.Runners.GetRunner(c.Context(), connect.NewRequest(&runnersv1.GetRunnerRequest{Id: id}))
			if err != nil {
				return err
			}
			names, err := a.namesOfAPI(c.Context())
			if err != nil {
				return err
			}
			r := response.Msg.GetRunner()
			if err := a.print(response.Msg, runnerFields(names, r)); err != nil || a.output != outputTable ||
				len(r.GetManagers()) == 0 {
				return err
			}
			if err := a.write("\n"); err != nil {
				return err
			}
			return a.printTable(managerTable(r.GetManagers()))
		})
}

func runnerFields(names *names, r *runnersv1.Runner) table {
	s := r.GetSettings()
	var t fields
	t.add("runner", strconv.FormatInt(r.GetId(), 10))
	t.add("description", trace.Line(s.GetDescription()))
	t.add("maintenance note", trace.Line(s.GetMaintenanceNote()))
	t.add("type", enumWord(r.GetType().String(), runnerTypePrefix))
	t.add("serves", runnerServes(names, r))
	t.add("users", joined(s.GetUserIds(), names.user))
	t.add("groups", joined(s.GetGroupIds(), names.group))
	t.add("status", enumWord(r.GetStatus().String(), runnerStatusPrefix))
	t.add("contacted", age(r.GetContactedAt()))
	t.add("tags", trace.Line(runnerTags(s)))
	t.add("paused", yesOrEmpty(s.GetPaused()))
	t.add("protected", yesOrEmpty(s.GetProtected()))
	t.add("locked", yesOrEmpty(s.GetLocked()))
	if s.GetMaximumTimeout() != nil {
		t.add("maximum timeout", shortDuration(s.GetMaximumTimeout()))
	}
	t.add("created by", names.user(r.GetCreatedBy()))
	t.add("created", clock(r.GetCreatedAt()))
	t.add("token expires", cmp.Or(clock(r.GetTokenExpiresAt()), "never"))
	return t.table()
}

func managerTable(managers []*runnersv1.Manager) table {
	t := table{header: []string{"SYSTEM ID", "STATUS", "CONTACTED", "VERSION", "PLATFORM", "EXECUTOR", "ADDRESS"}}
	for _, m := range managers {
		t.rows = append(t.rows, []string{
			trace.Line(m.GetSystemId()), enumWord(m.GetStatus().String(), runnerStatusPrefix), age(m.GetContactedAt()),
			trace.Line(m.GetVersion()), trace.Line(m.GetPlatform() + "/" + m.GetArchitecture()),
			trace.Line(m.GetExecutor()), trace.Line(m.GetAddress()),
		})
	}
	return t
}

func (a *app) runnerDelete() *cobra.Command {
	var yes bool
	c := a.runnerCommand("delete", "Delete a runner permanently",
		"Delete a runner permanently. Its token is void at once. Running jobs fail when their timeout has passed.",
		"  lockstep runners delete build-host",
		func(c *cobra.Command, api *client.Runners, id int64) error {
			if !yes {
				what := fmt.Sprintf("This deletes runner %d permanently, and its token is void.", id)
				if err := a.confirm(c, what, strconv.FormatInt(id, 10)); err != nil {
					return err
				}
			}
			response, err := api.Runners.DeleteRunner(c.Context(),
				connect.NewRequest(&runnersv1.DeleteRunnerRequest{Id: id}))
			if err != nil {
				return err
			}
			if a.output != outputTable {
				return a.print(response.Msg, table{})
			}
			return a.note("deleted runner %d", id)
		})
	yesFlag(c, &yes)
	return c
}

func (a *app) runnerResetToken() *cobra.Command {
	var yes bool
	c := a.runnerCommand("reset-token", "Replace the token of a runner, and print the new one once",
		"Replace the token of a runner, and print the new one once. The old token is void at once: register the runner "+
			"again with the new one.",
		"  lockstep runners reset-token build-host",
		func(c *cobra.Command, api *client.Runners, id int64) error {
			if !yes {
				what := fmt.Sprintf("This makes the token of runner %d void at once.", id)
				if err := a.confirm(c, what, strconv.FormatInt(id, 10)); err != nil {
					return err
				}
			}
			response, err := api.Runners.ResetRunnerToken(c.Context(),
				connect.NewRequest(&runnersv1.ResetRunnerTokenRequest{Id: id}))
			if err != nil {
				return err
			}
			if a.output != outputTable {
				return a.print(response.Msg, table{})
			}
			return a.printRunnerToken(api, "replaced the token of", id, response.Msg.GetToken())
		})
	yesFlag(c, &yes)
	return c
}

// printRunnerToken prints a token to standard output, and how to use it to standard error.
func (a *app) printRunnerToken(api *client.Runners, done string, id int64, token string) error {
	if err := a.note("%s runner %d: store the token now, it is not shown again", done, id); err != nil {
		return err
	}
	if err := a.write(token + "\n"); err != nil {
		return err
	}
	return a.note(`
Connect a gitlab-runner with the token:
  gitlab-runner register --non-interactive --url %s --token %s --executor shell
  gitlab-runner run`, api.URL, token)
}
