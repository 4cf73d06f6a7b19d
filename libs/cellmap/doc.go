// Package cellmap is the map from organizations to cells, with the address, the state and the keys of each cell. A
// router reads it to find the cell of a request.
//
// The map is the key-value bucket CELLS of one NATS system, the one that routers use. It has four kinds of entries:
//
//   - cell.<name>: address, state and public keys of job tokens of one cell. The runners service of that cell writes
//     it ([Announcer]). The permissions of NATS keep it from writing those of other cells.
//   - organization.<id>: the cell of an organization. An administrator writes it, with the command line.
//   - moved.<cell>.<organization>: where an organization went that the cell had. The runners service of that cell
//     writes it, and nobody else may. It counts for requests that reach this cell ([Follow]).
//   - legacy: the cell of requests whose token names no organization and no cell. An administrator writes it.
//
// An entry carries its generation, a number that its writers only increase. A [Map] never replaces an entry by one of
// the same or a lower generation. So a message that is older and stored later, after a failover or a restore of NATS,
// changes nothing. A removed entry remains as a tombstone, with its generation.
//
// A [Map] that was loaded once remains in force while NATS is away, and also when the bucket was lost: the entries of
// cells come back by themselves, an administrator adds the others again. [Map.Check] reports both.
//
// A malformed entry is dropped and logged; the previous one remains in force.
package cellmap
