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

func (s *Shadow) compare(ctx context.Context, tx pgx.Tx, table rebuilt, most int) (RebuiltTable, []string, error) {
	out := RebuiltTable{Name: table.name}
	if err := tx.QueryRow(ctx, `select count(*) from `+shadow(table.name)).Scan(&out.Rows); err != nil {
		return out, nil, err //nolint:wrapcheck // Compare says of what
	}
	derived, err := s.derived(ctx, tx, table)
	if err != nil {
		return out, nil, err
	}
	names := map[string]string{
		"shadow": shadow(table.name), "real": s.real(table.name), "same": same(table.key),
		"missing": "l." + table.key[0] + " is null or s." + table.key[0] + " is null or ", "distinct": distinct(derived),
		"order": each(table.key, ", ", func(c string) string { return "coalesce(l." + c + ", s." + c + ")" }),
	}
	from := fill(`from {real} l full join {shadow} s on {same} where {missing}{distinct}`, names)
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
		return table.difference(derived, is, should), err
	})
	return out, differences, err //nolint:wrapcheck // Compare says of what
}

// difference says how a row differs from what it should be; either may be nil.
func (t rebuilt) difference(derived []string, is, should map[string]any) string {
	named := is
	if is == nil {
		named = should
	}
	what := t.name + " " + each(t.key, "/", func(c string) string { return strings.Trim(shown(named[c]), `"`) })
	switch {
	case is == nil:
		return what + ": is missing"
	case should == nil:
		return what + ": is there, but not by the stream"
	}
	var parts []string
	for _, column := range derived {
		if !reflect.DeepEqual(is[column], should[column]) {
			parts = append(parts, fmt.Sprintf("%s is %s, by the stream %s", column, shown(is[column]), shown(should[column])))
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
