// Package readmodel rebuilds a read model in shadow tables: temporary tables of one PostgreSQL session with the names
// of the live ones. In that session the code that writes the live tables fills the shadow tables. They are then
// compared with the live tables and can replace their content. [Rebuild] does so beside the live consumers. It pauses
// these only for the last messages and the comparison.
//
// Transactions of [ShadowTables.Begin] and [ShadowTables.Savepoints] are read only, which lets
// PostgreSQL write temporary tables only. So no code can change the live tables before
// [ShadowTables.Replace]. Compare and Replace use the same columns and rows. Shadow tables end with
// their session.
//
// ShadowTables must not be used by several goroutines at once. Other tables of the service can be
// read but not written.
package readmodel
