package postgres

// DerivedColumns returns the derived columns by table.
func DerivedColumns() map[string][]string {
	out := map[string][]string{}
	for _, table := range rebuiltTables() {
		out[table.Name] = table.Derived
	}
	return out
}
