package cli

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	admissionv1 "lockstep.internal/schemas/gen/lockstep/admission/v1"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/trace"
)

const (
	controllerLevelPrefix = "CONTROLLER_LEVEL_"
	controllerModePrefix  = "CONTROLLER_MODE_"
	failurePolicyPrefix   = "FAILURE_POLICY_"

	maxCertificates = 64 << 10
	maxSecretFile   = 4 << 10
)

// admissionAPI returns a client of the admission service. Its access tokens come from the state service.
func (a *app) admissionAPI() (*client.Admission, error) {
	if a.client.AdmissionServer == "" {
		return nil, fault.New(
			errcode.InvalidArgument,
			"no admission service is configured: set --admission-server, LOCKSTEP_ADMISSION_SERVER or admission_server in %s",
			a.missingOrNot(),
		)
	}
	api, err := a.api()
	if err != nil {
		return nil, err
	}
	return api.Admission(http.DefaultClient, a.client.AdmissionServer), nil
}

func (a *app) controllers() *cobra.Command {
	c := group("controllers", "Create, show, change and delete admission controllers", a.controllerCreate(),
		a.controllerList(), a.controllerGet(), a.controllerUpdate(), a.controllerRotateSecret(), a.controllerReorder(),
		a.controllerDelete())
	c.Aliases = []string{"controller"}
	return c
}

// controllerOwner are the flags for where a controller is registered.
type controllerOwner struct {
	project, group string
	instance       bool
}

func (o *controllerOwner) flags(a *app, c *cobra.Command) {
	a.projectFlag(c, &o.project, "project", "controllers of this project")
	a.nameFlag(c, &o.group, "group", "controllers of this group, for the projects in it and below", a.groupWords)
	c.Flags().BoolVar(&o.instance, "instance", false, "controllers of the instance, for all projects")
	c.MarkFlagsMutuallyExclusive("project", "group", "instance")
	c.MarkFlagsOneRequired("project", "group", "instance")
}

func (o *controllerOwner) read(names *names) (admissionv1.ControllerLevel, int64, error) {
	switch {
	case o.instance:
		return admissionv1.ControllerLevel_CONTROLLER_LEVEL_INSTANCE, 0, nil
	case o.group != "":
		id, err := names.groupID(o.group)
		return admissionv1.ControllerLevel_CONTROLLER_LEVEL_GROUP, id, err
	default:
		id, err := names.projectID(o.project)
		return admissionv1.ControllerLevel_CONTROLLER_LEVEL_PROJECT, id, err
	}
}

func (a *app) controllerCreate() *cobra.Command {
	var owner controllerOwner
	var settings controllerFlags
	var secretFile string
	c := &cobra.Command{
		Use: "create NAME", Short: "Create an admission controller", Args: exactly("NAME"),
		Long: `Create an admission controller, as the last one of its project, group or instance. It is a web server (--url)
or a policy (--policy). The signing secret of a web server is shown once. With --mode dry_run, it decides and changes
nothing: lockstep admission decisions shows what it would do.`,
		Example: `  lockstep admission controllers create zones --instance --policy zones.yaml --mutating
  lockstep admission controllers create compliance --project shop/web --url https://compliance.example/jobs`,
		RunE: func(c *cobra.Command, args []string) error {
			request := &admissionv1.CreateControllerRequest{}
			var err error
			if request.Settings, err = settings.read(c); err != nil {
				return err
			}
			request.Settings.Name = args[0]
			if request.Secret, err = readSecretFile(c, secretFile); err != nil {
				return err
			}
			api, err := a.admissionAPI()
			if err != nil {
				return err
			}
			names, err := a.namesOfAPI(c.Context())
			if err != nil {
				return err
			}
			if request.Level, request.OwnerId, err = owner.read(names); err != nil {
				return err
			}
			created, err := api.Controllers.CreateController(c.Context(), connect.NewRequest(request))
			if err != nil {
				return err
			}
			if a.output != outputTable || created.Msg.GetSecret() == "" {
				return a.print(created.Msg, controllerTable(names, created.Msg.GetController()))
			}
			id := created.Msg.GetController().GetId()
			if err := a.note("created controller %d: store its signing secret now, it is not shown again", id); err != nil {
				return err
			}
			return a.write(created.Msg.GetSecret() + "\n")
		},
	}
	owner.flags(a, c)
	settings.flags(c)
	c.Flags().StringVar(&secretFile, "secret-file", "",
		"file with the signing secret, whsec_ and base64; default: a new one")
	c.MarkFlagsMutuallyExclusive("url", "policy")
	c.MarkFlagsOneRequired("url", "policy")
	return c
}

func controllerTable(names *names, list ...*admissionv1.Controller) table {
	t := table{header: []string{"ID", "NAME", "OF", "KIND", "MODE", "MUTATING", "ON FAILURE", "TIMEOUT"}}
	for _, k := range list {
		s := k.GetSettings()
		kind := "policy"
		if s.GetWebhook() != nil {
			kind = "webhook"
		}
		t.rows = append(t.rows, []string{
			strconv.FormatInt(k.GetId(), 10), trace.Line(s.GetName()), controllerOf(names, k), kind,
			enumWord(s.GetMode().String(), controllerModePrefix), yesOrEmpty(s.GetMutating()),
			enumWord(s.GetFailurePolicy().String(), failurePolicyPrefix), shortDuration(s.GetTimeout()),
		})
	}
	return t
}

// controllerOf returns where a controller is registered.
func controllerOf(names *names, k *admissionv1.Controller) string {
	switch k.GetLevel() {
	case admissionv1.ControllerLevel_CONTROLLER_LEVEL_PROJECT:
		return "project " + names.project(k.GetOwnerId())
	case admissionv1.ControllerLevel_CONTROLLER_LEVEL_GROUP:
		return "group " + names.group(k.GetOwnerId())
	default:
		return enumWord(k.GetLevel().String(), controllerLevelPrefix)
	}
}

func (a *app) controllerList() *cobra.Command {
	var owner controllerOwner
	c := &cobra.Command{
		Use: "list", Short: "List admission controllers in the order in which they are asked", Args: exactly(),
		Example: "  lockstep admission controllers list --project shop/web\n  lockstep admission controllers list --instance",
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := a.admissionAPI()
			if err != nil {
				return err
			}
			names, err := a.namesOfAPI(c.Context())
			if err != nil {
				return err
			}
			request := &admissionv1.ListControllersRequest{}
			if request.Level, request.OwnerId, err = owner.read(names); err != nil {
				return err
			}
			found, err := api.Controllers.ListControllers(c.Context(), connect.NewRequest(request))
			if err != nil {
				return err
			}
			return a.print(found.Msg, controllerTable(names, found.Msg.GetControllers()...))
		},
	}
	owner.flags(a, c)
	return c
}

// controllerCommand returns a command about one controller.
func (a *app) controllerCommand(
	use, short, long, example string,
	run func(c *cobra.Command, api *client.Admission, names *names, id int64) error,
) *cobra.Command {
	return &cobra.Command{
		Use: use + " ID", Short: short, Args: exactly("ID"), Long: long, Example: example,
		ValidArgsFunction: a.completeControllers,
		RunE: func(c *cobra.Command, args []string) error {
			id, err := strconv.ParseInt(args[0], 10, 64)
			if err != nil || id <= 0 {
				return usage(c, "the id of a controller is a number: see lockstep admission controllers list")
			}
			api, err := a.admissionAPI()
			if err != nil {
				return err
			}
			names, err := a.namesOfAPI(c.Context())
			if err != nil {
				return err
			}
			return run(c, api, names, id)
		},
	}
}

func (a *app) controllerGet() *cobra.Command {
	return a.controllerCommand("get", "Show an admission controller", "Show an admission controller, with its policy.",
		"  lockstep admission controllers get 12",
		func(c *cobra.Command, api *client.Admission, names *names, id int64) error {
			found, err := api.Controllers.GetController(c.Context(),
				connect.NewRequest(&admissionv1.GetControllerRequest{Id: id}))
			if err != nil {
				return err
			}
			k := found.Msg.GetController()
			if err := a.print(found.Msg, controllerDetails(names, k)); err != nil || a.output != outputTable ||
				k.GetSettings().GetPolicy() == "" {
				return err
			}
			return a.write("\n" + k.GetSettings().GetPolicy())
		})
}

func controllerDetails(names *names, k *admissionv1.Controller) table {
	s, hook := k.GetSettings(), k.GetSettings().GetWebhook()
	var t fields
	t.add("controller", strconv.FormatInt(k.GetId(), 10))
	t.add("name", trace.Line(s.GetName()))
	t.add("of", controllerOf(names, k))
	t.add("position", strconv.Itoa(int(k.GetPosition())))
	t.add("mode", enumWord(s.GetMode().String(), controllerModePrefix))
	t.add("mutating", yesOrEmpty(s.GetMutating()))
	t.add("on failure", enumWord(s.GetFailurePolicy().String(), failurePolicyPrefix))
	t.add("timeout", shortDuration(s.GetTimeout()))
	t.add("attempts", strconv.Itoa(int(s.GetMaxAttempts())))
	t.add("match", trace.Line(s.GetMatch()))
	t.add("variables", trace.Line(strings.Join(s.GetVariables(), ", ")))
	if hook != nil {
		t.add("url", trace.Line(hook.GetUrl()))
		t.add("request timeout", shortDuration(hook.GetRequestTimeout()))
		t.add("concurrency", strconv.Itoa(int(hook.GetConcurrency())))
		if hook.GetRate() > 0 {
			t.add("rate", fmt.Sprintf("%g requests per second", hook.GetRate()))
		}
	}
	if until := k.GetPreviousSecretUntil(); until != nil {
		t.add("secret before", "signs until "+clock(until))
	}
	t.add("created by", names.user(k.GetCreatedBy()))
	t.add("created", clock(k.GetCreatedAt()))
	t.add("changed", clock(k.GetUpdatedAt()))
	return t.table()
}

func (a *app) controllerUpdate() *cobra.Command {
	var settings controllerFlags
	c := a.controllerCommand("update", "Change an admission controller",
		"Change the settings of an admission controller whose flags are given. Jobs that wait for it ask it again. The\n"+
			"flags --url, --ca-file, --request-timeout, --concurrency and --rate change one setting each of a web server.",
		"  lockstep admission controllers update 12 --mode enforced\n"+
			"  lockstep admission controllers update 12 --policy zones.yaml",
		func(c *cobra.Command, api *client.Admission, names *names, id int64) error {
			wanted, err := settings.read(c)
			if err != nil {
				return err
			}
			request := &admissionv1.UpdateControllerRequest{Id: id, Settings: wanted, UpdateMask: &fieldmaskpb.FieldMask{}}
			paths := map[string]bool{}
			c.Flags().Visit(func(f *pflag.Flag) {
				if path, found := controllerFields()[f.Name]; found && !paths[path] {
					paths[path] = true
					request.UpdateMask.Paths = append(request.UpdateMask.Paths, path)
				}
			})
			if len(paths) == 0 {
				return usage(c, "want a flag with a new setting")
			}
			if paths["webhook"] {
				current, err := api.Controllers.GetController(c.Context(),
					connect.NewRequest(&admissionv1.GetControllerRequest{Id: id}))
				if err != nil {
					return err
				}
				wanted.Webhook = settings.overWebhook(c, current.Msg.GetController().GetSettings().GetWebhook())
			}
			updated, err := api.Controllers.UpdateController(c.Context(), connect.NewRequest(request))
			if err != nil {
				return err
			}
			return a.print(updated.Msg, controllerTable(names, updated.Msg.GetController()))
		})
	settings.flags(c)
	c.Flags().StringVar(&settings.message.Name, "name", "", "new name")
	return c
}

// readSecretFile returns the signing secret in a file; empty without one.
func readSecretFile(c *cobra.Command, file string) (string, error) {
	if file == "" {
		return "", nil
	}
	secret, err := readInput(file, "secret", maxSecretFile, c.InOrStdin())
	return strings.TrimSpace(string(secret)), err
}

func (a *app) controllerRotateSecret() *cobra.Command {
	var overlap time.Duration
	var secretFile string
	c := a.controllerCommand("rotate-secret", "Give an admission controller another signing secret",
		`Give a web server that decides about jobs another signing secret, which is shown once. For a time, each request has
a signature of the new secret and one of the secret before: give the web server the new one in that time. With
--overlap 0s, the secret before signs nothing more: for a secret that has leaked.`,
		"  lockstep admission controllers rotate-secret 12\n"+
			"  lockstep admission controllers rotate-secret 12 --overlap 0s --secret-file new.txt",
		func(c *cobra.Command, api *client.Admission, names *names, id int64) error {
			request := &admissionv1.RotateSecretRequest{Id: id}
			var err error
			if request.Secret, err = readSecretFile(c, secretFile); err != nil {
				return err
			}
			if c.Flags().Changed("overlap") {
				request.Overlap = durationpb.New(overlap)
			}
			rotated, err := api.Controllers.RotateSecret(c.Context(), connect.NewRequest(request))
			if err != nil {
				return err
			}
			if a.output != outputTable {
				return a.print(rotated.Msg, controllerTable(names, rotated.Msg.GetController()))
			}
			before := "the secret before is of no use any more"
			if until := rotated.Msg.GetController().GetPreviousSecretUntil(); until != nil {
				before = "requests are signed with the secret before, too, until " + clock(until)
			}
			if err := a.note("controller %d has another signing secret, which is not shown again; %s", id, before); err != nil {
				return err
			}
			return a.write(rotated.Msg.GetSecret() + "\n")
		})
	durationFlag(c, &overlap, "overlap", 0,
		"time for which requests are signed with the secret before, too, at most 7d; default: 24h")
	c.Flags().StringVar(&secretFile, "secret-file", "",
		"file with the new signing secret, whsec_ and base64; default: a random one")
	return c
}

func (a *app) controllerDelete() *cobra.Command {
	var yes bool
	c := a.controllerCommand("delete", "Delete an admission controller",
		"Delete an admission controller. Jobs that wait for it continue without it.",
		"  lockstep admission controllers delete 12",
		func(c *cobra.Command, api *client.Admission, _ *names, id int64) error {
			if !yes {
				what := fmt.Sprintf("This deletes controller %d: jobs that it would reject may run.", id)
				if err := a.confirm(c, what, strconv.FormatInt(id, 10)); err != nil {
					return err
				}
			}
			_, err := api.Controllers.DeleteController(c.Context(),
				connect.NewRequest(&admissionv1.DeleteControllerRequest{Id: id}))
			if err != nil {
				return err
			}
			return a.note("deleted controller %d", id)
		})
	c.Flags().BoolVar(&yes, "yes", false, "do not ask for confirmation")
	return c
}

func (a *app) controllerReorder() *cobra.Command {
	var owner controllerOwner
	c := &cobra.Command{
		Use: "reorder ID...", Short: "Set the order of the admission controllers of an owner", Args: cobra.MinimumNArgs(1),
		Long: `Set the order of all admission controllers of a project, a group or the instance. It counts for jobs that are
created later.`,
		Example: "  lockstep admission controllers reorder --instance 14 12 13",
		RunE: func(c *cobra.Command, args []string) error {
			request := &admissionv1.ReorderControllersRequest{}
			for _, text := range args {
				id, err := strconv.ParseInt(text, 10, 64)
				if err != nil || id <= 0 {
					return usage(c, "the id of a controller is a number: see lockstep admission controllers list")
				}
				request.Ids = append(request.Ids, id)
			}
			api, err := a.admissionAPI()
			if err != nil {
				return err
			}
			names, err := a.namesOfAPI(c.Context())
			if err != nil {
				return err
			}
			if request.Level, request.OwnerId, err = owner.read(names); err != nil {
				return err
			}
			reordered, err := api.Controllers.ReorderControllers(c.Context(), connect.NewRequest(request))
			if err != nil {
				return err
			}
			return a.print(reordered.Msg, controllerTable(names, reordered.Msg.GetControllers()...))
		},
	}
	c.ValidArgsFunction = a.completeControllersOf(&owner)
	owner.flags(a, c)
	return c
}
