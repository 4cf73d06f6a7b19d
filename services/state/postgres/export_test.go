package postgres

// DerivedColumns are the columns that a rebuild makes anew, by table.
func DerivedColumns() map[string][]string {
	out := map[string][]string{}
	for _, table := range rebuiltTables() {
		out[table.Name] = table.Derived
	}
	return out
}
