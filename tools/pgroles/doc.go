// Package pgroles gives each service of a PostgreSQL database a role of its own.
//
// The role owns the schema of its service. It reads and changes nothing else in the database, and has no privilege of
// an administrator. Locks, notifications and the names of tables remain visible to all roles of a database.
//
// [Apply] may run before each start. It changes only what differs.
package pgroles
