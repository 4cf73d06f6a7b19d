package pgtest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/tools/testkit/pg"
)

// prepared are databases with the same tables, which tests use one after another.
type prepared struct {
	// free are the databases that no test uses. Their tables are empty.
	free []database
	// all are the databases to drop, by name.
	all []string
}

type database struct{ name, url string }

// Prepared returns the connection string of a database with empty tables. prepare creates the tables; every call
// in a test process passes the same function. When the test ends, the tables and sequences are reset, and another
// test may get the database. This takes a fraction of the time that creating tables and dropping a database takes.
//
// Reset are the tables of the schema public, except those that hold the versions of migrations.
func Prepared(tb testing.TB, prepare func(url string) error) string {
	tb.Helper()
	d, found := shared.takePrepared()
	if !found {
		d = create(tb)
		if err := prepare(d.url); err != nil {
			tb.Fatalf("prepare a database for the test: %v", err)
		}
		shared.addPrepared(d)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		if err := reset(ctx, d.url); err != nil {
			tb.Errorf("reset the test's database: %v", err)
			return
		}
		shared.returnPrepared(d)
	})
	return d.url
}

func (s *sharedServer) takePrepared() (database, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := len(s.prepared.free) - 1
	if last < 0 {
		return database{}, false
	}
	d := s.prepared.free[last]
	s.prepared.free = s.prepared.free[:last]
	return d, true
}

func (s *sharedServer) addPrepared(d database) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prepared.all = append(s.prepared.all, d.name)
}

func (s *sharedServer) returnPrepared(d database) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prepared.free = append(s.prepared.free, d)
}

// dropPrepared drops the databases on a server that outlives the test process.
func (s *sharedServer) dropPrepared(ctx context.Context, server string) error {
	var errs []error
	for _, name := range s.prepared.all {
		errs = append(errs, pg.DropDatabase(ctx, server, name))
	}
	return errors.Join(errs...)
}

// reset empties the tables and restarts the sequences. Sessions of the test that are left are ended: their locks
// would block.
func reset(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	_, err = conn.Exec(ctx, `
		select pg_terminate_backend(pid) from pg_stat_activity
			where datname = current_database() and pid <> pg_backend_pid();
		do $$
		declare
			tables text;
			sequence regclass;
		begin
			select string_agg(c.oid::regclass::text, ', ') into tables from pg_class c
				where c.relnamespace = 'public'::regnamespace and c.relkind = 'r' and c.relname not like '%\_migrations';
			if tables is not null then
				execute 'truncate ' || tables || ' restart identity';
			end if;
			for sequence in select c.oid::regclass from pg_class c
				where c.relnamespace = 'public'::regnamespace and c.relkind = 'S'
			loop
				execute 'alter sequence ' || sequence || ' restart';
			end loop;
		end $$`)
	if err != nil {
		return fmt.Errorf("empty the tables: %w", err)
	}
	return nil
}
