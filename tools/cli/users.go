package cli

import (
	"fmt"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

func (a *app) users() *cobra.Command {
	return group("user", "Create, list, block and unblock users", a.userCreate(), a.userList(), a.userBlock(),
		a.userUnblock())
}

func (a *app) userCreate() *cobra.Command {
	request := &statev1.CreateUserRequest{}
	c := &cobra.Command{
		Use: "create USERNAME", Short: "Create a user", Args: exactly("USERNAME"),
		Long: `Create a user. The user has no access until you add a role and create a token, which the user then replaces.
Only administrators may create users.`,
		Example: `  lockstep user create alice
  lockstep member add alice --project acme/platform/web --role developer
  lockstep token create first --user alice --expires-in 24h`,
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			request.Username = args[0]
			response, err := api.Directory.CreateUser(c.Context(), connect.NewRequest(request))
			if err != nil {
				return err
			}
			return a.print(response.Msg, userTable(response.Msg.GetUser()))
		},
	}
	c.Flags().BoolVar(&request.Admin, "admin", false, "make it an administrator, who may do everything in this cell")
	return c
}

func (a *app) userList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List users, by name (administrators only)", Args: exactly(),
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			all, err := api.Users(c.Context())
			if err != nil {
				return err
			}
			return a.print(&statev1.ListUsersResponse{Users: all}, userTable(all...))
		},
	}
}

func (a *app) userBlock() *cobra.Command {
	request := &statev1.BlockUserRequest{}
	var yes bool
	c := &cobra.Command{
		Use: "block USER", Short: "Block a user", Args: exactly("USER"), ValidArgsFunction: a.completeUsers,
		Long: `Block every request of a user until user unblock, and revoke the tokens of others that the user's tokens
created. Workspaces of the user keep running. Only administrators may block users.`,
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			if request.Id, err = a.names(c.Context(), api).userID(args[0]); err != nil {
				return err
			}
			if !yes {
				what := fmt.Sprintf("This blocks user %s, and revokes the tokens of others that its tokens created.", args[0])
				if err := a.confirm(c, what, args[0]); err != nil {
					return err
				}
			}
			response, err := api.Directory.BlockUser(c.Context(), connect.NewRequest(request))
			if err != nil {
				return err
			}
			if n := len(response.Msg.GetRevoked()); n > 0 {
				if err := a.note("revoked tokens of other users: %d", n); err != nil {
					return err
				}
			}
			return a.print(response.Msg, userTable(response.Msg.GetUser()))
		},
	}
	c.Flags().BoolVar(&request.KeepOtherUsers, "keep-other-users", false, "keep the tokens of other users")
	yesFlag(c, &yes)
	return c
}

func (a *app) userUnblock() *cobra.Command {
	request := &statev1.UnblockUserRequest{}
	return &cobra.Command{
		Use: "unblock USER", Short: "End the block of a user", Args: exactly("USER"), ValidArgsFunction: a.completeUsers,
		Long: `End the block of a user. The user's roles are as before. The tokens from before the block are revoked, since
somebody else may have had them: create a new one. Only administrators may unblock users.`,
		Example: `  lockstep user unblock alice
  lockstep token create first --user alice --expires-in 24h`,
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			if request.Id, err = a.names(c.Context(), api).userID(args[0]); err != nil {
				return err
			}
			response, err := api.Directory.UnblockUser(c.Context(), connect.NewRequest(request))
			if fault.Is(err, errcode.FailedPrecondition) {
				return fault.Wrap(err, errcode.FailedPrecondition, "user %q is not blocked", args[0])
			}
			if err != nil {
				return err
			}
			if n := len(response.Msg.GetRevoked()); n > 0 {
				if err := a.note("revoked tokens of the user: %d", n); err != nil {
					return err
				}
			}
			return a.print(response.Msg, userTable(response.Msg.GetUser()))
		},
	}
}

func userTable(users ...*statev1.User) table {
	t := table{header: []string{"ID", "USERNAME", "ROLE", "STATE"}}
	for _, u := range users {
		role, state := "-", "active"
		if u.GetAdmin() {
			role = "administrator"
		}
		if u.GetBlocked() {
			state = "blocked"
		}
		t.rows = append(t.rows, []string{strconv.FormatInt(u.GetId(), 10), u.GetUsername(), role, state})
	}
	return t
}

func (a *app) whoAmI() *cobra.Command {
	return &cobra.Command{
		Use: "whoami", Short: "Show your user, your roles and the addresses of this command line", Args: exactly(),
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			response, err := api.Directory.WhoAmI(c.Context(), connect.NewRequest(&statev1.WhoAmIRequest{}))
			if err != nil {
				return err
			}
			if a.output != outputTable {
				return a.print(response.Msg, table{})
			}
			user := response.Msg.GetUser()
			mine, err := api.Directory.ListMemberships(c.Context(),
				connect.NewRequest(&statev1.ListMembershipsRequest{UserId: user.GetId()}))
			if err != nil {
				return err
			}
			names := a.names(c.Context(), api)
			t := table{header: []string{"FIELD", "VALUE"}, rows: [][]string{
				{"user", user.GetUsername()},
				{"id", strconv.FormatInt(user.GetId(), 10)},
				{"server", a.client.Server},
			}}
			if user.GetAdmin() {
				t.rows = append(t.rows, []string{"role", "administrator of the cell"})
			}
			for _, m := range mine.Msg.GetMemberships() {
				scope := names.scope(m.GetScope(), m.GetScopeId())
				t.rows = append(t.rows, []string{"role", roleName(m.GetRole()) + " of " + scope})
			}
			return a.print(response.Msg, t)
		},
	}
}

func (a *app) version() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version of this program", Args: exactly(),
		RunE: func(c *cobra.Command, _ []string) error { return a.write(c.Root().Version + "\n") },
	}
}

// roleName returns a role as the command line writes it.
func roleName(r statev1.Role) string {
	return strings.ToLower(strings.TrimPrefix(r.String(), rolePrefix))
}

const (
	rolePrefix = "ROLE_"
	// roleHelp explains the roles.
	roleHelp = `Each role includes the ones before it, and holds for everything below: that of an organization for its
groups and projects.

  reader      sees workspaces, agents, rollouts and members
  developer   creates workspaces, and manages its own; opens streams into clusters
  maintainer  manages all workspaces, agents and templates
  owner       manages members, groups and projects

An administrator of the cell may do everything, and needs no role.`
)
