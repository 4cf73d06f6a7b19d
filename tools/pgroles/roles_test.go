package pgroles_test

import (
	"context"
	"log/slog"
	"net/url"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/postgres"
	"lockstep.internal/tools/pgroles"
	"lockstep.internal/tools/testkit/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func connect(t *testing.T, address string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.Background())) })
	return conn
}

func execute(t *testing.T, conn *pgx.Conn, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		_, err := conn.Exec(t.Context(), statement)
		require.NoError(t, err, statement)
	}
}

// fixture is a database with an administrator's session.
type fixture struct {
	t         *testing.T
	url, name string
	admin     *pgx.Conn
	passwords map[string]string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, url: pgtest.Database(t), passwords: map[string]string{
		"state": `a:/?#[]@%2f "\ü'`, "deploys": "$$;--&x=y", "runners": "%s' or true",
		"admission": "; drop role x --",
	}}
	f.admin = connect(t, f.url)
	f.name = f.admin.Config().Database
	t.Cleanup(func() { // roles belong to the server, which may outlive the test
		for _, service := range pgroles.Services() {
			role := pgx.Identifier{pgroles.Role(f.name, service)}.Sanitize()
			_, err := f.admin.Exec(context.Background(), "drop owned by "+role+" cascade; drop role "+role)
			require.NoError(t, err)
		}
	})
	return f
}

// owner returns a session of the database's owner, who may create roles.
func (f *fixture) owner() *pgx.Conn {
	f.t.Helper()
	owner := f.name + "_owner"
	execute(f.t, f.admin, `create role "`+owner+`" login createrole password 'x'`,
		`alter database "`+f.name+`" owner to "`+owner+`"`)
	f.t.Cleanup(func() {
		execute := func(sql string) {
			_, err := f.admin.Exec(context.Background(), sql)
			require.NoError(f.t, err, sql)
		}
		execute(`alter database "` + f.name + `" owner to current_user`)
		execute(`drop owned by "` + owner + `" cascade`)
		execute(`drop role "` + owner + `"`)
	})
	u, err := url.Parse(f.url)
	require.NoError(f.t, err)
	u.User = url.UserPassword(owner, "x")
	return connect(f.t, u.String())
}

func (f *fixture) apply() {
	f.t.Helper()
	require.NoError(f.t, pgroles.Apply(f.t.Context(), f.admin, f.passwords))
}

// roleURL is the connection string of a service.
func (f *fixture) roleURL(service string) string {
	f.t.Helper()
	address, err := pgroles.URL(f.url, service, f.passwords[service])
	require.NoError(f.t, err)
	return address
}

func TestRoleReachesOnlyItsOwnSchema(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.apply()
	services := map[string]*pgx.Conn{}
	for _, service := range pgroles.Services() {
		services[service] = connect(t, f.roleURL(service))
		execute(t, services[service], "create table "+service+".secrets (id int)",
			"create function "+service+".reveal() returns int language sql as 'select 1'",
			"create temporary table shadow (id int)", "select pg_try_advisory_lock(1)", "listen changes",
			"alter table "+service+".secrets add column value text")
	}
	for service, other := range map[string]string{
		"state": "deploys", "deploys": "state", "runners": "state", "admission": "runners",
	} {
		for _, statement := range []string{
			"select id from " + other + ".secrets", "insert into " + other + ".secrets values (1)",
			"drop table " + other + ".secrets", "create table " + other + ".mine ()", "select " + other + ".reveal()",
			"alter schema " + other + " owner to current_user", "drop schema " + other + " cascade",
			`set role "` + pgroles.Role(f.name, other) + `"`, "set role " + pgx.Identifier{f.admin.Config().User}.Sanitize(),
			"create schema mine", "create table public.mine ()", "create role mine", "create database mine",
			`alter role "` + pgroles.Role(f.name, other) + `" password 'mine'`, "alter role current_user superuser",
			"copy (select 1) to program 'true'", "copy pg_class to '/tmp/mine'", "select pg_read_file('/etc/passwd')",
			"select pg_ls_dir('/')", "select lo_import('/etc/passwd')", "select rolpassword from pg_authid",
			"alter system set log_statement = 'all'", "select pg_reload_conf()", "create extension pgcrypto",
			"select pg_terminate_backend(pid) from pg_stat_activity where usename = '" + f.admin.Config().User + "'",
		} {
			_, err := services[service].Exec(t.Context(), statement)
			var refused *pgconn.PgError
			require.ErrorAs(t, err, &refused, "%s: %s", service, statement)
			require.Equal(t, "42501", refused.Code, "%s: %s: %v", service, statement, err)
		}
	}
}

func TestOnlyServicesConnect(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.apply()
	other := newFixture(t)
	other.apply()
	u, err := url.Parse(other.roleURL("state"))
	require.NoError(t, err)
	u.Path = "/" + f.name
	_, err = pgx.Connect(t.Context(), u.String())
	var refused *pgconn.PgError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "42501", refused.Code, err)
}

func TestPasswordIsReplaced(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.apply()
	before := f.roleURL("state")
	f.passwords["state"] = "another"
	f.apply()
	connect(t, f.roleURL("state"))
	_, err := pgx.Connect(t.Context(), before)
	var refused *pgconn.PgError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "28P01", refused.Code)
}

// TestExistingObjectsGetTheRoleAsOwner is about schemas that were made before the services had roles.
func TestExistingObjectsGetTheRoleAsOwner(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	execute(t, f.admin, "create schema state", "set search_path = state", `
		create table objects (id bigint generated always as identity, number bigserial, name text primary key);
		create index on objects (number);
		create sequence ids; create view names as select name from objects; create materialized view copies as table names;
		create type kind as enum ('a'); create domain positive as int check (value > 0);
		create function counted() returns trigger language plpgsql as $$ begin return null; end $$;
		create trigger counts after insert on objects execute function counted();
		create table parts (id int) partition by list (id); create table part partition of parts default`)
	for range 2 {
		f.apply()
		state := connect(t, f.roleURL("state"))
		execute(t, state, "set search_path = state", "insert into objects (name) values (gen_random_uuid())",
			"select nextval('ids'), nextval('objects_number_seq')", "refresh materialized view copies",
			"alter table objects add column if not exists extra text", "drop index if exists objects_number_idx",
			"create or replace view names as select name from objects", "alter type kind add value if not exists 'b'",
			"alter domain positive set default 1", "drop trigger if exists counts on objects", "analyze objects, parts",
			"create or replace function counted() returns trigger language plpgsql as $$ begin return new; end $$",
			"alter table part alter id set default 1")
	}
	var others int
	require.NoError(t, f.admin.QueryRow(t.Context(), `
		select count(*) from pg_class c join pg_namespace n on n.oid = relnamespace
		where nspname = 'state' and relowner::regrole::text <> $1`, pgroles.Role(f.name, "state")).Scan(&others))
	require.Zero(t, others)
}

func TestRoleLosesPrivilegesOfAnAdministrator(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	role := pgroles.Role(f.name, "deploys")
	execute(t, f.admin, `create role "`+role+`" superuser createdb createrole replication bypassrls`)
	f.apply()
	var privileged bool
	require.NoError(t, f.admin.QueryRow(t.Context(), `
		select rolsuper or rolcreatedb or rolcreaterole or rolreplication or rolbypassrls
		from pg_roles where rolname = $1`, role).Scan(&privileged))
	require.False(t, privileged)
}

func TestRoleLosesMemberships(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	role := pgroles.Role(f.name, "deploys")
	granted, grantor := f.name+" granted", f.name+" grantor"
	execute(t, f.admin, `create role "`+role+`"`, `create role "`+granted+`"`, `create role "`+grantor+`"`,
		`grant pg_read_server_files, pg_signal_backend to "`+role+`"`,
		`grant "`+granted+`" to "`+grantor+`" with admin option`,
		`grant "`+granted+`" to "`+role+`" granted by "`+grantor+`"`)
	t.Cleanup(func() {
		_, err := f.admin.Exec(context.Background(), `drop role "`+granted+`"; drop role "`+grantor+`"`)
		require.NoError(t, err)
	})
	for range 2 {
		f.apply()
		var memberships int
		require.NoError(t, f.admin.QueryRow(t.Context(), `
			select count(*) from pg_auth_members where member = (select oid from pg_roles where rolname = $1)`,
			role).Scan(&memberships))
		require.Zero(t, memberships)
	}
}

// TestMembershipThatCannotBeRevokedIsReported is about an administrator who may create roles, and is no superuser.
func TestMembershipThatCannotBeRevokedIsReported(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	admin := f.owner()
	role, superuser := pgroles.Role(f.name, "deploys"), f.admin.Config().User
	execute(t, f.admin, `create role "`+role+`"`, `grant "`+superuser+`" to "`+role+`"`)
	require.ErrorContains(t, pgroles.Apply(t.Context(), admin, f.passwords), "revoke "+superuser+" from "+role)
	f.apply()
}

// TestAdministratorRunsNoFunctionsOfOthers is about a database where everybody may create objects in the schema public.
func TestAdministratorRunsNoFunctionsOfOthers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.apply()
	attacker := pgroles.Role(f.name, "deploys")
	execute(t, f.admin, "grant create on schema public to public")
	// Each is the better match for the arguments of a call that names no schema.
	const body = ` language plpgsql as $$ begin
		if (select usesuper from pg_user where usename = current_user) then raise 'a function of another user runs'; end if;
		return null; end $$`
	execute(t, connect(t, f.roleURL("deploys")),
		"create function public.hashtextextended(text, int) returns bigint"+body,
		"create function public.format(text, name) returns text"+body,
		"create function public.format(text, name, text) returns text"+body,
		"create function public.format(text, name, name) returns text"+body,
		"create function public.format(text, regclass, text) returns text"+body)
	execute(t, f.admin, "drop schema state", "create schema state", "create table state.objects ()")
	f.apply()
	var creates bool
	require.NoError(t, f.admin.QueryRow(t.Context(), "select has_schema_privilege($1, 'public', 'create')",
		attacker).Scan(&creates))
	require.False(t, creates)
}

func TestAdministratorNeedsNotBeSuperuser(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	admin := f.owner()
	execute(t, admin, "create schema state", "create table state.before (id int)")
	for range 2 {
		require.NoError(t, pgroles.Apply(t.Context(), admin, f.passwords))
	}
	execute(t, connect(t, f.roleURL("state")), "alter table state.before add column name text")
	execute(t, admin, "select id from state.before") // as pg_dump does
}

// TestServiceWaitsUntilItOwnsItsSchema is about a service that starts while the roles are applied.
func TestServiceWaitsUntilItOwnsItsSchema(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.apply()
	execute(t, f.admin, "drop schema state", "create schema state") // of another owner
	pool, err := postgres.Open(postgres.Config{URL: f.roleURL("state"), Schema: "state"})
	require.NoError(t, err)
	defer pool.Close()
	waits := make(chan struct{})
	logger := slog.New(&signalHandler{Handler: slog.NewTextHandler(t.Output(), nil), logged: waits})
	migrated := make(chan error, 1)
	go func() {
		migrated <- postgres.Migrate(t.Context(), pool, logger, postgres.Migrations{
			Name: "state", FS: fstest.MapFS{"001_a.sql": {Data: []byte("create table a ()")}},
		})
	}()
	select {
	case <-waits:
	case err := <-migrated:
		require.NoError(t, err)
		require.Fail(t, "migrated without the schema")
	}
	f.apply()
	require.NoError(t, <-migrated)
}

// signalHandler closes a channel at the first record.
type signalHandler struct {
	slog.Handler

	logged chan struct{}
}

func (h *signalHandler) Handle(ctx context.Context, r slog.Record) error {
	select {
	case <-h.logged:
	default:
		close(h.logged)
	}
	return h.Handler.Handle(ctx, r)
}

func TestWrongInputChangesNothing(t *testing.T) {
	t.Parallel()
	_, err := pgroles.URL("host=a dbname=b", "state", "x")
	require.Error(t, err)
	database := pgtest.Database(t)
	admin := connect(t, database)
	require.ErrorContains(t, pgroles.Apply(t.Context(), admin, map[string]string{"state": "x", "z": ""}),
		"role of z: the password is empty")
	var exists bool
	require.NoError(t, admin.QueryRow(t.Context(), "select exists (select from pg_roles where rolname = $1)",
		pgroles.Role(admin.Config().Database, "state")).Scan(&exists))
	require.False(t, exists)
}
