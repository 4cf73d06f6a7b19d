package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/jackc/pgx/v5"
)

// RebuiltTable is how a table compares with its shadow.
type RebuiltTable struct {
	Name string
	// Rows that were rebuilt.
	Rows int64
	// Different rows: other ones, missing ones, and such as there should not be.
	Different int64
}

// maxShown bounds the text of a value in a difference, in characters.
const maxShown = 120

// Compare compares every real table with its shadow. Of the differences it returns the first as sentences, at most so many.
func (s *Shadow) Compare(ctx context.Context, tx pgx.Tx, most int) ([]RebuiltTable, []string, error) {
	tables, differences := []RebuiltTable{}, []string{}
	for _, table := range rebuiltTables() {
		compared, found, err := s.compare(ctx, tx, table, most-len(differences))
		if err != nil {
			return nil, nil, fmt.Errorf("compare %s: %w", table.name, err)
		}
		tables, differences = append(tables, compared), append(differences, found...)
	}
	return tables, differences, nil
}

func (s *Shadow) compare(ctx context.Context, tx pgx.Tx, table rebuiltTable, most int) (RebuiltTable, []string, error) {
	out := RebuiltTable{Name: table.name}
	if err := tx.QueryRow(ctx, `select count(*) from `+shadow(table.name)).Scan(&out.Rows); err != nil {
		return out, nil, err //nolint:wrapcheck // Compare says of what
	}
	// Rows that people have made since the last Sync have no shadow.
	join, missing := "full join", "l."+table.key[0]+" is null or s."+table.key[0]+" is null or "
	if table.fixed {
		join, missing = "join", ""
	}
	names := map[string]string{
		"shadow": shadow(table.name), "real": s.real(table.name), "same": same(table.key), "join": join, "missing": missing, "distinct": distinct(table.derived),
		"order": each(table.key, ", ", func(c string) string { return "coalesce(l." + c + ", s." + c + ")" }),
	}
	from := fill(`from {real} l {join} {shadow} s on {same} where {missing}{distinct}`, names)
	if err := tx.QueryRow(ctx, `select count(*) `+from).Scan(&out.Different); err != nil || out.Different == 0 || most == 0 {
		return out, nil, err //nolint:wrapcheck // Compare says of what
	}
	rows, err := tx.Query(ctx, `select to_jsonb(l), to_jsonb(s) `+from+fill(` order by {order} limit $1`, names), most)
	if err != nil {
		return out, nil, err //nolint:wrapcheck // Compare says of what
	}
	differences, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		var is, should map[string]any
		err := row.Scan(&is, &should)
		return table.difference(is, should), err
	})
	return out, differences, err //nolint:wrapcheck // Compare says of what
}

// difference says how a row differs from what it should be; either may be nil.
func (t rebuiltTable) difference(is, should map[string]any) string {
	named := is
	if is == nil {
		named = should
	}
	what := t.name + " " + each(t.key, "/", func(c string) string { return strings.Trim(shown(named[c]), `"`) })
	switch {
	case is == nil:
		return what + ": is missing"
	case should == nil:
		return what + ": is there, but not by the streams"
	}
	var parts []string
	for _, column := range t.derived {
		if !reflect.DeepEqual(is[column], should[column]) {
			parts = append(parts, fmt.Sprintf("%s is %s, by the streams %s", column, shown(is[column]), shown(should[column])))
		}
	}
	return what + ": " + strings.Join(parts, "; ")
}

func shown(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return "unknown"
	}
	if runes := []rune(string(text)); len(runes) > maxShown {
		return string(runes[:maxShown]) + "…"
	}
	return string(text)
}

// Replace makes the real tables what their shadows are, row by row where they differ. What is wanted, and what was told, stays.
func (s *Shadow) Replace(ctx context.Context, tx pgx.Tx) error {
	for _, table := range rebuiltTables() {
		names := map[string]string{
			"shadow": shadow(table.name), "real": s.real(table.name), "same": same(table.key), "distinct": distinct(table.derived),
			"derived": each(table.derived, ", ", func(c string) string { return c + " = s." + c }),
		}
		statements := []string{`update {real} l set {derived} from {shadow} s where {same} and {distinct}`}
		if !table.fixed {
			statements = append(
				statements,
				`delete from {real} l where not exists (select from {shadow} s where {same})`,
				//nolint:unqueryvet // the shadow was made like it: the columns are the same, whichever there are
				`insert into {real} select s.* from {shadow} s where not exists (select from {real} l where {same})`,
			)
		}
		for _, statement := range statements {
			if _, err := tx.Exec(ctx, fill(statement, names)); err != nil {
				return fmt.Errorf("put the rebuilt %s in place: %w", table.name, err)
			}
		}
	}
	return nil
}
