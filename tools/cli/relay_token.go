package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/relay/auth"
)

// relayTokenLifetime is the default: connections through the relay end when the token expires.
const relayTokenLifetime = 365 * 24 * time.Hour

func (a *app) relayToken() *cobra.Command {
	var secretFile, subject, issuer, audience string
	var lifetime time.Duration
	c := &cobra.Command{
		Use:   "token --secret-file FILE --subject NAME",
		Short: "Print a token with which a service calls relays",
		Args:  exactly(),
		Long: `Print a token of a service for relays, signed with the secret of external.secret_file. A rule of
external.callers_file limits what the service may reach. The token of a gateway, which reaches workspaces in other
clusters, is for the file relay.token_file of the gateway and needs this rule:

  callers: [{subject: gateway, all_agents: true, workspaces: true}]

Guard the secret: who has it can sign a token for every service. To revoke a token, remove its rule or replace the
secret.`,
		Example: `  openssl rand -base64 48 > external.secret
  lockstep relay token --secret-file external.secret --subject gateway > relay.token`,
		RunE: func(*cobra.Command, []string) error {
			if secretFile == "" || subject == "" || lifetime <= 0 {
				return fault.New(errcode.InvalidArgument, "--secret-file, --subject and a positive --lifetime are required")
			}
			secret, err := config.SecretFile(secretFile).Read()
			if err != nil {
				return fmt.Errorf("--secret-file: %w", err)
			}
			signer, err := auth.NewSigner(auth.Config{
				Issuer: issuer, Audience: audience, Secrets: [][]byte{[]byte(secret)}, Lifetime: lifetime,
			})
			if err != nil {
				return fault.Wrap(err, errcode.InvalidArgument, "%v", err)
			}
			token, err := signer.Sign(subject)
			if err != nil {
				return err
			}
			return a.write(token + "\n")
		},
	}
	flags := c.Flags()
	flags.StringVar(&secretFile, "secret-file", "", "file of external.secret_file of the relays")
	flags.StringVar(&subject, "subject", "", "name of the service in external.callers_file")
	flags.StringVar(&issuer, "issuer", "lockstep", "external.issuer of the relays")
	flags.StringVar(&audience, "audience", "relay", "external.audience of the relays")
	durationFlag(c, &lifetime, "lifetime", relayTokenLifetime, "time until the token expires")
	return c
}
