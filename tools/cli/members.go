package cli

import (
	"slices"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

func (a *app) members() *cobra.Command {
	c := group("member", "Add, remove and list members: users with a role in an organization, group or project",
		a.memberAdd(), a.memberRemove(), a.memberList())
	c.Long = "Add, remove and list members: users with a role in an organization, group or project.\n\n" + roleHelp
	return c
}

// scopeFlags select an organization, group or project.
type scopeFlags struct{ organization, group, project string }

func (f *scopeFlags) flags(a *app, c *cobra.Command) {
	a.nameFlag(c, &f.organization, "organization", "organization, by name or id", a.organizationWords)
	a.nameFlag(c, &f.group, "group", "group, by path or id", a.groupWords)
	a.projectFlag(c, &f.project, "project", "project, by path or id")
}

func (f *scopeFlags) read(names *names) (statev1.ScopeKind, int64, error) {
	var kind statev1.ScopeKind
	var id int64
	var err error
	switch {
	case f.organization != "" && f.group == "" && f.project == "":
		kind = statev1.ScopeKind_SCOPE_KIND_ORGANIZATION
		id, err = names.organizationID(f.organization)
	case f.organization == "" && f.group != "" && f.project == "":
		kind = statev1.ScopeKind_SCOPE_KIND_GROUP
		id, err = names.groupID(f.group)
	case f.organization == "" && f.group == "" && f.project != "":
		kind = statev1.ScopeKind_SCOPE_KIND_PROJECT
		id, err = names.projectID(f.project)
	default:
		err = fault.New(errcode.InvalidArgument, "set one of --project, --group and --organization")
	}
	return kind, id, err
}

func (a *app) memberAdd() *cobra.Command {
	var where scopeFlags
	var role string
	c := &cobra.Command{
		Use: "add USER --role ROLE --project PROJECT", Short: "Give a user a role, or another role", Args: exactly("USER"),
		ValidArgsFunction: a.completeUsers,
		Long: "Give a user a role in a project, group or organization. It replaces an earlier role there.\n\n" +
			roleHelp,
		Example: `  lockstep member add alice --project acme/platform/web --role developer
  lockstep member add bob --organization acme --role owner`,
		RunE: func(c *cobra.Command, args []string) error {
			value := statev1.Role_value[rolePrefix+strings.ToUpper(role)]
			if value == 0 {
				return fault.New(errcode.InvalidArgument, "--role %q must be reader, developer, maintainer or owner", role)
			}
			api, err := a.api()
			if err != nil {
				return err
			}
			names := a.names(c.Context(), api)
			member := &statev1.Membership{Role: statev1.Role(value)}
			if member.Scope, member.ScopeId, err = where.read(names); err != nil {
				return err
			}
			member.UserId, member.Username = userOf(args[0])
			response, err := api.Directory.PutMembership(c.Context(),
				connect.NewRequest(&statev1.PutMembershipRequest{Membership: member}))
			if err != nil {
				return err
			}
			return a.print(response.Msg, memberTable(names, response.Msg.GetMembership()))
		},
	}
	where.flags(a, c)
	c.Flags().StringVar(&role, "role", "", "role: reader, developer, maintainer or owner (required)")
	_ = c.RegisterFlagCompletionFunc("role", cobra.FixedCompletions(
		[]string{"reader", "developer", "maintainer", "owner"}, cobra.ShellCompDirectiveNoFileComp))
	return c
}

// userOf returns the id or the name of a user.
func userOf(text string) (id int64, username string) {
	if id, err := strconv.ParseInt(text, 10, 64); err == nil && id > 0 {
		return id, ""
	}
	return 0, text
}

func (a *app) memberRemove() *cobra.Command {
	var where scopeFlags
	c := &cobra.Command{
		Use: "remove USER --project PROJECT", Short: "Take a role from a user", Args: exactly("USER"),
		ValidArgsFunction: a.completeUsers,
		Long:              "Take the role of a user in a project, group or organization. Roles above and below stay.",
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			request := &statev1.DeleteMembershipRequest{}
			names := a.names(c.Context(), api)
			if request.Scope, request.ScopeId, err = where.read(names); err != nil {
				return err
			}
			request.UserId, request.Username = userOf(args[0])
			_, err = api.Directory.DeleteMembership(c.Context(), connect.NewRequest(request))
			if fault.Is(err, errcode.NotFound) {
				return fault.Wrap(err, errcode.NotFound, "user %q does not exist, or has no role of its own in %s", args[0],
					names.scope(request.GetScope(), request.GetScopeId()))
			}
			if err != nil {
				return err
			}
			return a.note("removed %s", args[0])
		},
	}
	where.flags(a, c)
	return c
}

func (a *app) memberList() *cobra.Command {
	var where scopeFlags
	c := &cobra.Command{
		Use: "list --project PROJECT", Args: exactly(),
		Short: "List the members of a project, group or organization, by name",
		Long: `List the members of a project, group or organization. Members of the groups and the organization above
have their roles in it, too: list those with --group and --organization.`,
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			names, request := a.names(c.Context(), api), &statev1.ListMembershipsRequest{}
			if request.Scope, request.ScopeId, err = where.read(names); err != nil {
				return err
			}
			response, err := api.Directory.ListMemberships(c.Context(), connect.NewRequest(request))
			if err != nil {
				return err
			}
			slices.SortFunc(response.Msg.GetMemberships(), func(a, b *statev1.Membership) int {
				return strings.Compare(a.GetUsername(), b.GetUsername())
			})
			return a.print(response.Msg, memberTable(names, response.Msg.GetMemberships()...))
		},
	}
	where.flags(a, c)
	return c
}

func memberTable(names *names, members ...*statev1.Membership) table {
	t := table{header: []string{"USER", "ID", "ROLE", "IN"}}
	for _, m := range members {
		t.rows = append(t.rows, []string{
			m.GetUsername(), strconv.FormatInt(m.GetUserId(), 10), roleName(m.GetRole()),
			names.scope(m.GetScope(), m.GetScopeId()),
		})
	}
	return t
}
