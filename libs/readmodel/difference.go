package readmodel

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/jackc/pgx/v5"
)

// TableComparison is the result of comparing a table with its shadow table.
type TableComparison struct {
	Name string
	// Rows is the number of rebuilt rows.
	Rows int64
	// Different is the number of rows that differ, are missing or are superfluous.
	Different int64
}

// maxShown bounds the text of a value, in characters.
const maxShown = 120

// Compare compares every live table with its shadow table. It also returns the first differences as
// sentences, at most limit. Missing and superfluous rows of a table with UserRows are no
// differences: users have added or removed them.
func (t *ShadowTables) Compare(ctx context.Context, tx pgx.Tx, limit int) ([]TableComparison, []string, error) {
	tables, differences := []TableComparison{}, []string{}
	for _, table := range t.tables {
		compared, found, err := t.compare(ctx, tx, table, limit-len(differences))
		if err != nil {
			return nil, nil, fmt.Errorf("compare %s: %w", table.Name, err)
		}
		tables, differences = append(tables, compared), append(differences, found...)
	}
	return tables, differences, nil
}

func (t *ShadowTables) compare(
	ctx context.Context, tx pgx.Tx, table Table, limit int,
) (TableComparison, []string, error) {
	out := TableComparison{Name: table.Name}
	if err := tx.QueryRow(ctx, `select count(*) from `+ShadowName(table.Name)).Scan(&out.Rows); err != nil {
		return out, nil, err //nolint:wrapcheck // wrapped by Compare
	}
	names := t.names(table)
	names["join"], names["missing"] = "full join", "l."+table.Key[0]+" is null or s."+table.Key[0]+" is null or "
	if table.UserRows {
		names["join"], names["missing"] = "join", ""
	}
	names["order"] = joinEach(table.Key, ", ", func(c string) string { return "coalesce(l." + c + ", s." + c + ")" })
	from := Render(`from {real} l {join} {shadow} s on {same} where {missing}{distinct}`, names)
	if err := tx.QueryRow(ctx, `select count(*) `+from).Scan(
		&out.Different,
	); err != nil || out.Different == 0 ||
		limit == 0 {
		return out, nil, err //nolint:wrapcheck // wrapped by Compare
	}
	rows, err := tx.Query(ctx, `select to_jsonb(l), to_jsonb(s) `+from+Render(` order by {order} limit $1`, names), limit)
	if err != nil {
		return out, nil, err //nolint:wrapcheck // wrapped by Compare
	}
	differences, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		var live, rebuilt map[string]any
		err := row.Scan(&live, &rebuilt)
		return table.difference(live, rebuilt), err
	})
	return out, differences, err //nolint:wrapcheck // wrapped by Compare
}

// difference describes how a live row differs from the rebuilt one. Either may be nil.
func (t Table) difference(live, rebuilt map[string]any) string {
	named := live
	if live == nil {
		named = rebuilt
	}
	what := t.Name + " " + joinEach(t.Key, "/", func(c string) string { return strings.Trim(shown(named[c]), `"`) })
	switch {
	case live == nil:
		return what + ": is missing"
	case rebuilt == nil:
		return what + ": is stored, but not in the streams"
	}
	var parts []string
	for _, column := range t.Derived {
		if !reflect.DeepEqual(live[column], rebuilt[column]) {
			parts = append(parts, fmt.Sprintf("%s is %s, the streams give %s",
				column, shown(live[column]), shown(rebuilt[column])))
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
