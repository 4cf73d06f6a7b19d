package pgtest

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
)

// PlantCode creates a function in a schema that runs when a dump of the schema is restored, as somebody does who took
// over the user of the connection string. It records its user, and makes the planter a superuser if it can.
func PlantCode(tb testing.TB, url, schema string) {
	tb.Helper()
	conn := connectPlanted(tb, url)
	role := pgx.Identifier{conn.Config().User}.Sanitize()
	_, err := conn.Exec(tb.Context(), fmt.Sprintf(`
		create table %[1]s.planted_users (name name);
		create function %[1]s.planted() returns boolean language plpgsql as $$ begin
			reset role;
			insert into %[1]s.planted_users values (current_user);
			begin
				alter role %[2]s superuser;
			exception when others then null;
			end;
			return true;
		end $$;
		create table %[1]s.planted (id int check (%[1]s.planted()));
		insert into %[1]s.planted values (1)`, schema, role))
	if err != nil {
		tb.Fatalf("plant code in the schema %s: %v", schema, err)
	}
}

// RequirePlantedCodeRanAs fails the test if code of [PlantCode] did not run in one restore, or ran as another user than
// role.
func RequirePlantedCodeRanAs(tb testing.TB, url, schema, role string) {
	tb.Helper()
	rows, err := connectPlanted(tb, url).Query(tb.Context(), "select name::text from "+schema+".planted_users")
	if err != nil {
		tb.Fatalf("read the roles that ran code of the schema %s: %v", schema, err)
	}
	users, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		tb.Fatalf("read the roles that ran code of the schema %s: %v", schema, err)
	}
	// Once when it was planted, once in the restore.
	if len(users) != 2 || users[0] != role || users[1] != role {
		tb.Fatalf("code of the schema %s ran as %v, want twice as %s", schema, users, role)
	}
}

func connectPlanted(tb testing.TB, url string) *pgx.Conn {
	tb.Helper()
	conn, err := pgx.Connect(tb.Context(), url)
	if err != nil {
		tb.Fatalf("connect to the database: %v", err)
	}
	tb.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}
