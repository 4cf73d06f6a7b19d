package cli

import (
	"context"
	"strconv"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	admissionv1 "lockstep.internal/schemas/gen/lockstep/admission/v1"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/trace"
)

// completedGroups is the number of groups whose controllers complete a word.
const completedGroups = 5

// suggestAdmission is suggest with a client of the admission service.
func (a *app) suggestAdmission(
	c *cobra.Command, list func(ctx context.Context, state *client.API, api *client.Admission) ([]string, error),
) ([]string, cobra.ShellCompDirective) {
	return a.suggest(c, func(ctx context.Context, state *client.API) ([]string, error) {
		api, err := a.admissionAPI()
		if err != nil {
			return nil, err
		}
		return list(ctx, state, api)
	})
}

// completeDecidedJobs completes the first argument with the ids of the newest jobs that admission knows.
func (a *app) completeDecidedJobs(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.suggestAdmission(c, func(ctx context.Context, state *client.API, api *client.Admission) ([]string, error) {
		var words []string
		err := eachProject(ctx, state, func(id int64, path string) error {
			found, err := api.Decisions.ListDecisions(ctx,
				connect.NewRequest(&admissionv1.ListDecisionsRequest{ProjectId: id, PageSize: completedItems}))
			if err != nil {
				return err
			}
			for _, d := range found.Msg.GetDecisions() {
				words = append(words, strconv.FormatInt(d.GetJobId(), 10)+"\t"+trace.Line(d.GetJobName())+" "+
					enumWord(d.GetOutcome().String(), outcomePrefix)+" "+path)
			}
			return nil
		})
		return words, err
	})
}

// completeControllers completes the first argument with the ids of controllers of the instance, and of the first groups
// and projects.
func (a *app) completeControllers(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.suggestAdmission(c, func(ctx context.Context, state *client.API, api *client.Admission) ([]string, error) {
		words, err := controllerWords(ctx, api, admissionv1.ControllerLevel_CONTROLLER_LEVEL_INSTANCE, 0, "instance")
		if err != nil {
			return nil, err
		}
		groups, err := a.names(ctx, state).readGroups()
		if err != nil {
			return nil, err
		}
		for _, g := range groups[:min(len(groups), completedGroups)] {
			found, err := controllerWords(ctx, api, admissionv1.ControllerLevel_CONTROLLER_LEVEL_GROUP, g.id,
				"group "+g.path)
			if err != nil {
				return nil, err
			}
			words = append(words, found...)
		}
		err = eachProject(ctx, state, func(id int64, path string) error {
			found, err := controllerWords(ctx, api, admissionv1.ControllerLevel_CONTROLLER_LEVEL_PROJECT, id,
				"project "+path)
			words = append(words, found...)
			return err
		})
		return words, err
	})
}

// completeControllersOf completes each argument with the ids of controllers of an owner.
func (a *app) completeControllersOf(owner *controllerOwner) cobra.CompletionFunc {
	return func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return a.suggestAdmission(c, func(ctx context.Context, _ *client.API, api *client.Admission) ([]string, error) {
			names, err := a.namesOfAPI(ctx)
			if err != nil {
				return nil, err
			}
			level, id, err := owner.read(names)
			if err != nil {
				return nil, err
			}
			return controllerWords(ctx, api, level, id, enumWord(level.String(), controllerLevelPrefix))
		})
	}
}

// controllerWords returns the ids of an owner's controllers; none if the caller may not manage them.
func controllerWords(
	ctx context.Context, api *client.Admission, level admissionv1.ControllerLevel, owner int64, of string,
) ([]string, error) {
	found, err := api.Controllers.ListControllers(ctx,
		connect.NewRequest(&admissionv1.ListControllersRequest{Level: level, OwnerId: owner}))
	switch {
	case fault.Is(err, errcode.PermissionDenied), fault.Is(err, errcode.NotFound):
		return nil, nil
	case err != nil:
		return nil, err
	}
	words := make([]string, 0, len(found.Msg.GetControllers()))
	for _, k := range found.Msg.GetControllers() {
		words = append(words, strconv.FormatInt(k.GetId(), 10)+"\t"+trace.Line(k.GetSettings().GetName())+" "+of)
	}
	return words, nil
}
