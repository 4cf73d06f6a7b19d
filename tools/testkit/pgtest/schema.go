package pgtest

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Schema describes the columns, constraints, indexes and triggers of the tables in the search path, one line each,
// sorted. The order of columns does not matter.
func Schema(ctx context.Context, db interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
},
) ([]string, error) {
	rows, err := db.Query(ctx, `
		with tables as (
			select c.oid, c.relname as name from pg_class c
			where c.relnamespace = current_schema()::regnamespace and c.relkind = 'r'
		)
		select line from (
			select format('%s.%s %s%s default %s%s', t.name, a.attname, format_type(a.atttypid, a.atttypmod),
				case when a.attnotnull then ' not null' end, pg_get_expr(d.adbin, d.adrelid),
				case when a.attidentity <> '' then ' identity ' || a.attidentity::text end) as line
			from tables t join pg_attribute a on a.attrelid = t.oid and a.attnum > 0 and not a.attisdropped
				left join pg_attrdef d on (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
			union all
			select format('%s: constraint %s %s', t.name, c.conname, pg_get_constraintdef(c.oid))
			from tables t join pg_constraint c on c.conrelid = t.oid
			union all
			select format('%s: %s', t.name, pg_get_indexdef(i.indexrelid))
			from tables t join pg_index i on i.indrelid = t.oid
			union all
			select format('%s: %s %s', t.name, pg_get_triggerdef(g.oid), p.prosrc)
			from tables t join pg_trigger g on g.tgrelid = t.oid and not g.tgisinternal join pg_proc p on p.oid = g.tgfoid
		) as described order by line`)
	if err != nil {
		return nil, fmt.Errorf("describe the schema: %w", err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("describe the schema: %w", err)
	}
	return lines, nil
}
