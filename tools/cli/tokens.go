package cli

import (
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

func (a *app) tokens() *cobra.Command {
	return group("token", "Create, list and revoke personal access tokens",
		a.tokenCreate(), a.tokenList(), a.tokenRevoke())
}

// tokenScopePrefix begins the names of scopes in the API.
const tokenScopePrefix = "TOKEN_SCOPE_"

func (a *app) tokenCreate() *cobra.Command {
	var lifetime time.Duration
	var user, scope string
	c := &cobra.Command{
		Use: "create NAME", Short: "Create a token and print it once", Args: exactly("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			request := &statev1.CreateTokenRequest{Name: args[0]}
			if request.UserId, err = a.names(c.Context(), api).userID(user); err != nil {
				return err
			}
			if scope != "" {
				value, known := statev1.TokenScope_value[tokenScopePrefix+strings.ToUpper(scope)]
				if !known || value == 0 {
					return fault.New(errcode.InvalidArgument, "--scope %q is unknown: use %s", scope, access.ScopeNames)
				}
				request.Scope = statev1.TokenScope(value)
			}
			if lifetime > 0 {
				request.ExpiresAt = timestamppb.New(time.Now().Add(lifetime))
			}
			response, err := api.Tokens.CreateToken(c.Context(), connect.NewRequest(request))
			if err != nil {
				return err
			}
			if a.output != outputTable {
				return a.print(response.Msg, table{})
			}
			if err := a.note("created token %d: store it now, it is not shown again",
				response.Msg.GetToken().GetId()); err != nil {
				return err
			}
			return a.write(response.Msg.GetValue() + "\n")
		},
	}
	durationFlag(c, &lifetime, "expires-in", 0, "time until it expires, such as 30d; default: never")
	c.Flags().StringVar(&scope, "scope", "",
		"what it may do: read, write (also change workspaces and open streams into clusters) or admin (everything that the "+
			"user may do); default: as your token")
	a.userFlag(c, &user, "create it for another user (administrators only)")
	return c
}

func (a *app) tokenList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List your tokens, oldest first", Args: exactly(),
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			response, err := api.Tokens.ListTokens(c.Context(), connect.NewRequest(&statev1.ListTokensRequest{}))
			if err != nil {
				return err
			}
			t := table{header: []string{"ID", "NAME", "SCOPE", "CREATED BY", "AGE", "LAST USED", "EXPIRES", "STATE"}}
			for _, k := range response.Msg.GetTokens() {
				state, expires := "active", "never"
				if k.GetRevoked() {
					state = "revoked"
				}
				if k.GetExpiresAt() != nil {
					expires = k.GetExpiresAt().AsTime().Local().Format(time.DateTime)
					if k.GetExpiresAt().AsTime().Before(time.Now()) {
						state = "expired"
					}
				}
				t.rows = append(
					t.rows,
					[]string{
						strconv.FormatInt(k.GetId(), 10),
						k.GetName(),
						strings.ToLower(strings.TrimPrefix(k.GetScope().String(), tokenScopePrefix)),
						creator(k),
						age(k.GetCreatedAt()),
						age(k.GetLastUsedAt()),
						expires,
						state,
					},
				)
			}
			return a.print(response.Msg, t)
		},
	}
}

func (a *app) tokenRevoke() *cobra.Command {
	request := &statev1.RevokeTokenRequest{}
	c := &cobra.Command{
		Use: "revoke ID", Short: "Revoke a token permanently, with all tokens that it created", Args: exactly("ID"),
		Long: `Revoke a token permanently, with all tokens that it created, that those created, and so on, of every
user. The output lists them.

To rotate a token, create a replacement with it, log in with the replacement (LOCKSTEP_TOKEN), then revoke the old
token: your own token stays valid, with all tokens that it created. An administrator who has created tokens for others
keeps theirs with --keep-other-users. Do not use it if anybody else may have had the token.`,
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			if request.Id, err = parseID("ID", args[0]); err != nil {
				return err
			}
			response, err := api.Tokens.RevokeToken(c.Context(), connect.NewRequest(request))
			if err != nil {
				return err
			}
			return a.printRevoked(a.names(c.Context(), api), request.GetId(), response.Msg)
		},
	}
	c.Flags().BoolVar(&request.KeepOtherUsers, "keep-other-users", false, "keep the tokens of other users")
	return c
}

// creator returns the id of the token that created one.
func creator(t *statev1.Token) string {
	if t.GetCreatedBy() == 0 {
		return "-"
	}
	return strconv.FormatInt(t.GetCreatedBy(), 10)
}

// printRevoked prints the tokens that were revoked with token id.
func (a *app) printRevoked(names *names, id int64, r *statev1.RevokeTokenResponse) error {
	if a.output == outputTable && len(r.GetRevoked()) == 0 {
		return a.note("token %d was already revoked or has expired, as has each token that it created", id)
	}
	t := table{header: []string{"REVOKED", "NAME", "USER", "CREATED BY"}}
	for _, k := range r.GetRevoked() {
		t.rows = append(t.rows, []string{
			strconv.FormatInt(k.GetId(), 10), k.GetName(), names.user(k.GetUserId()), creator(k),
		})
	}
	return a.print(r, t)
}
