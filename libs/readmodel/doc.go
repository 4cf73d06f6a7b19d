// Package shadow makes a second, temporary set of a service's tables, in one session of PostgreSQL: there, their names mean the shadows, so that the code that keeps
// the real ones fills these. So what is derived from streams can be made anew beside what is there, compared with it, and put in its place.
//
// It promises: transactions of [ShadowTables.Begin] and [ShadowTables.Within] are read only, which lets temporary tables be written and nothing else: whatever is read into a
// shadow, and by whichever code, the real tables stay as they are until [ShadowTables.Replace]. [ShadowTables.Compare] and Replace are of the same columns and rows. Shadows end with
// their session.
//
// ShadowTables belongs to one goroutine. A table of the service that is not declared keeps its name's meaning, the real one, which can then be read and not written.
package readmodel
