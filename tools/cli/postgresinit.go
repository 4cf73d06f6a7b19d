package cli

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/tools/pgroles"
	"lockstep.internal/tools/stack"
)

func (a *app) postgresCommands() *cobra.Command {
	return group("postgres", "Create the roles of services in PostgreSQL", a.postgresInit())
}

func (a *app) postgresInit() *cobra.Command {
	var dir, url, passwordFile string
	var removePassword bool
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "init --url URL --dir DIR",
		Short: "Create a role for each service in a database, and its password",
		Args:  exactly(),
		Long: `Create a role for each service that stores data: DATABASE_admission, DATABASE_deploys, DATABASE_runners
and DATABASE_state. Each
owns the schema of its service, and can read and change nothing else. The user of --url must be a superuser, or own the
database and be permitted to create roles.

The passwords are in DIR/SERVICE/password, such as DIR/state/password: give each service its own only. A second run
replaces no file, and sets the passwords of the files. It also gives schemas of earlier versions to the roles. Run it
before each restore: a schema is restored as the role of its service. Other users of the database need a privilege to
connect.`,
		Example: `  lockstep postgres init --url postgres://postgres@db/lockstep --password-file admin.password`,
		RunE: func(c *cobra.Command, _ []string) error {
			if url == "" {
				return fault.New(errcode.InvalidArgument, "--url is missing")
			}
			settings := postgres.Config{URL: url, MaxConnections: 1, ApplicationName: "lockstep-postgres-init"}
			if passwordFile != "" {
				settings.Password = config.SecretFile(passwordFile).Read
			}
			passwords, created, err := stack.InitDatabase(dir)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), timeout)
			defer cancel()
			if err := applyRoles(ctx, settings, passwords, removePassword); err != nil {
				return err
			}
			return a.printTable(createdFiles(created))
		},
	}
	f := c.Flags()
	f.StringVar(&dir, "dir", "postgres", "folder of the passwords")
	f.StringVar(&url, "url", "", "connection string of the database, as its administrator (required)")
	f.StringVar(&passwordFile, "password-file", "", "file with the administrator's password; default: that of --url")
	f.BoolVar(&removePassword, "remove-own-password", false,
		"remove the administrator's password: it logs in only where the server trusts it, such as on its own machine")
	durationFlag(c, &timeout, "timeout", time.Minute, "how long to wait for the database")
	return c
}

func applyRoles(
	ctx context.Context, settings postgres.Config, passwords map[string]string, removePassword bool,
) error {
	pool, err := postgres.Connect(ctx, settings, slog.New(slog.DiscardHandler))
	if err != nil {
		return fault.Wrap(err, errcode.Unavailable, "%v", err)
	}
	defer pool.Close()
	err = pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		if err := pgroles.Apply(ctx, conn.Conn(), passwords); err != nil {
			return err
		}
		if !removePassword {
			return nil
		}
		_, err := conn.Exec(ctx, "alter role current_user password null")
		return err //nolint:wrapcheck // wrapped below
	})
	if err != nil {
		return fault.Wrap(err, errcode.FailedPrecondition, "%v", err)
	}
	return nil
}
