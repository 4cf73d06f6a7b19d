package pgroles

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"

	"github.com/jackc/pgx/v5"
)

// Services returns the services that have a schema.
func Services() []string { return []string{"admission", "deploys", "runners", "state"} }

// maxName is the length of the longest name of PostgreSQL.
const maxName = 63

// Role returns the name of the role of a service. Roles belong to the whole server, so it has the name of the database.
func Role(database, service string) string { return database + "_" + service }

// URL returns the connection string of a service's role. admin is a URL of the same database.
func URL(admin, service, password string) (string, error) {
	config, err := pgx.ParseConfig(admin)
	if err != nil {
		return "", fmt.Errorf("read the database URL: %w", err)
	}
	u, err := url.Parse(admin)
	if err != nil || u.Scheme == "" {
		return "", errors.New("the connection string of the database is not a URL")
	}
	u.User = url.UserPassword(Role(config.Database, service), password)
	return u.String(), nil
}

// Apply creates the roles of services and their schemas, and sets their passwords. Objects in these schemas that
// another role owns, such as restored ones, get the role as their owner. conn is a session of an administrator in the
// database: a superuser, or the database's owner if it may create roles.
func Apply(ctx context.Context, conn *pgx.Conn, passwords map[string]string) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { //nolint:wrapcheck // errors below name the step
		a := applying{tx: tx}
		// Others may create functions in the schema public. Names without a schema find none of them.
		if err := a.exec(ctx, `set local search_path = pg_catalog`); err != nil {
			return err
		}
		// Two runs at the same time would both create a role.
		if err := a.exec(ctx, `select pg_advisory_xact_lock(hashtextextended('lockstep/roles', 0))`); err != nil {
			return err
		}
		const user = `select current_database(), current_user, usesuper from pg_user where usename = current_user`
		if err := tx.QueryRow(ctx, user).Scan(&a.database, &a.admin, &a.superuser); err != nil {
			return fmt.Errorf("read the user of the session: %w", err)
		}
		if err := a.exec(ctx, `revoke all on database `+name(a.database)+` from public`); err != nil {
			return err
		}
		if err := a.execEach(ctx, `
			select 'revoke create on schema public from public' from pg_namespace
			where nspname = 'public' and pg_has_role(nspowner, 'usage')`); err != nil {
			return err
		}
		for _, service := range slices.Sorted(maps.Keys(passwords)) {
			if err := a.service(ctx, service, passwords[service]); err != nil {
				return fmt.Errorf("role of %s: %w", service, err)
			}
		}
		return nil
	})
}

// applying is a transaction of Apply.
type applying struct {
	tx              pgx.Tx
	database, admin string
	superuser       bool
}

func name(identifier string) string { return pgx.Identifier{identifier}.Sanitize() }

func (a applying) exec(ctx context.Context, sql string) error {
	if _, err := a.tx.Exec(ctx, sql); err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	return nil
}

// execEach executes the statements that a query returns.
func (a applying) execEach(ctx context.Context, query string, args ...any) error {
	rows, err := a.tx.Query(ctx, query, args...)
	if err != nil {
		return fmt.Errorf("%s: %w", query, err)
	}
	statements, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("%s: %w", query, err)
	}
	for _, statement := range statements {
		if err := a.exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

func (a applying) service(ctx context.Context, service, password string) error {
	role := Role(a.database, service)
	if len(role) > maxName {
		return fmt.Errorf("the name %s is longer than %d bytes: choose a shorter name of the database", role, maxName)
	}
	if err := a.role(ctx, role, password); err != nil {
		return err
	}
	if !a.superuser {
		// Only a member may give objects to the role, and read them for a backup.
		if err := a.exec(ctx, `grant `+name(role)+` to `+name(a.admin)); err != nil {
			return err
		}
	}
	if err := a.exec(ctx, `grant connect, temporary on database `+name(a.database)+` to `+name(role)); err != nil {
		return err
	}
	return a.schema(ctx, service, role)
}

// role creates a role, and takes privileges and memberships from one that exists.
func (a applying) role(ctx context.Context, role, password string) error {
	verifier, err := scramVerifier(password)
	if err != nil {
		return err
	}
	rows, err := a.tx.Query(ctx, `
		select rolsuper or rolcreaterole or rolcreatedb or rolreplication or rolbypassrls
		from pg_roles where rolname = $1`, role)
	if err != nil {
		return fmt.Errorf("find the role: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[bool])
	if err != nil {
		return fmt.Errorf("find the role: %w", err)
	}
	change, privileges := "alter", ""
	switch {
	case len(found) == 0:
		change = "create"
	case found[0]:
		privileges = " nosuperuser nocreaterole nocreatedb noreplication nobypassrls"
	}
	// The verifier is not in the error.
	if _, err := a.tx.Exec(ctx, change+` role `+name(role)+privileges+` login password '`+verifier+`'`); err != nil {
		return fmt.Errorf("%s the role: %w", change, err)
	}
	// Later versions than 15 revoke only what the named role has granted.
	return a.execEach(ctx, `
		select format('revoke %I from %I', granted.rolname, $1::text)
			|| coalesce(format(' granted by %I', grantor.rolname), '')
		from pg_auth_members m join pg_roles member on member.oid = m.member join pg_roles granted on granted.oid = m.roleid
			left join pg_roles grantor on grantor.oid = m.grantor
		where member.rolname = $1`, role)
}

// schema creates the schema of a service, and makes its role the owner of all objects in it.
func (a applying) schema(ctx context.Context, schema, role string) error {
	var exists bool
	const find = `select exists (select from pg_namespace where nspname = $1)`
	if err := a.tx.QueryRow(ctx, find, schema).Scan(&exists); err != nil {
		return fmt.Errorf("find the schema: %w", err)
	}
	if !exists {
		return a.exec(ctx, `create schema `+name(schema)+` authorization `+name(role))
	}
	return a.execEach(ctx, `
		with o as (select oid from pg_roles where rolname = $2),
			n as (select oid, nspname, nspowner from pg_namespace where nspname = $1)
		select format('alter schema %I owner to %I', n.nspname, $2) from n, o where n.nspowner <> o.oid
		union all
		-- The sequence of a column has the owner of its table.
		select format('alter %s %s owner to %I', case c.relkind when 'v' then 'view' when 'm' then 'materialized view'
			when 'S' then 'sequence' else 'table' end, c.oid::regclass, $2)
		from pg_class c join n on n.oid = c.relnamespace, o
		where c.relkind in ('r', 'p', 'v', 'm', 'S') and c.relowner <> o.oid and not exists (
			select from pg_depend d
			where d.classid = 'pg_class'::regclass and d.objid = c.oid and c.relkind = 'S' and d.deptype in ('a', 'i'))
		union all
		select format('alter routine %s owner to %I', p.oid::regprocedure, $2)
		from pg_proc p join n on n.oid = p.pronamespace, o where p.proowner <> o.oid
		union all
		select format('alter type %s owner to %I', t.oid::regtype, $2)
		from pg_type t join n on n.oid = t.typnamespace, o
		where t.typtype in ('e', 'd') and t.typowner <> o.oid`, schema, role)
}
