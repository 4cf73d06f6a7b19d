package readmodel

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/jackc/pgx/v5"
)

// TableComparison is how a table compares with its shadow.
type TableComparison struct {
	Name string
	// Rows that were rebuilt.
	Rows int64
	// Different rows: other ones, missing ones, and such as there should not be.
	Different int64
}

// maxShown bounds the text of a value in a difference, in characters.
const maxShown = 120

// Compare compares every real table with its shadow. Of the differences it returns the first as sentences, at most so many. Rows of a fixed table that have no shadow, or
// no longer a real row, are none: people made or removed them meanwhile.
func (t *ShadowTables) Compare(ctx context.Context, tx pgx.Tx, most int) ([]TableComparison, []string, error) {
	tables, differences := []TableComparison{}, []string{}
	for _, table := range t.tables {
		compared, found, err := t.compare(ctx, tx, table, most-len(differences))
		if err != nil {
			return nil, nil, fmt.Errorf("compare %s: %w", table.Name, err)
		}
		tables, differences = append(tables, compared), append(differences, found...)
	}
	return tables, differences, nil
}

func (t *ShadowTables) compare(ctx context.Context, tx pgx.Tx, table Table, most int) (TableComparison, []string, error) {
	out := TableComparison{Name: table.Name}
	if err := tx.QueryRow(ctx, `select count(*) from `+ShadowName(table.Name)).Scan(&out.Rows); err != nil {
		return out, nil, err //nolint:wrapcheck // Compare says of what
	}
	names := t.names(table)
	names["join"], names["missing"] = "full join", "l."+table.Key[0]+" is null or s."+table.Key[0]+" is null or "
	if table.UserRows {
		names["join"], names["missing"] = "join", ""
	}
	names["order"] = each(table.Key, ", ", func(c string) string { return "coalesce(l." + c + ", s." + c + ")" })
	from := Render(`from {real} l {join} {shadow} s on {same} where {missing}{distinct}`, names)
	if err := tx.QueryRow(ctx, `select count(*) `+from).Scan(&out.Different); err != nil || out.Different == 0 || most == 0 {
		return out, nil, err //nolint:wrapcheck // Compare says of what
	}
	rows, err := tx.Query(ctx, `select to_jsonb(l), to_jsonb(s) `+from+Render(` order by {order} limit $1`, names), most)
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
func (t Table) difference(is, should map[string]any) string {
	named := is
	if is == nil {
		named = should
	}
	what := t.Name + " " + each(t.Key, "/", func(c string) string { return strings.Trim(shown(named[c]), `"`) })
	switch {
	case is == nil:
		return what + ": is missing"
	case should == nil:
		return what + ": is there, but not by the streams"
	}
	var parts []string
	for _, column := range t.Derived {
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
