// Package idrange divides ids between cells. No two cells give the same id, so an organization that moves to another
// cell keeps its ids.
package idrange

// Size is the number of ids of a cell: 2^40.
const Size = int64(1) << 40

// Range is the ids that one cell gives to entities.
type Range struct{ First, Last int64 }

// OfCell returns the range of the cell with a number.
func OfCell(number int64) Range { return Range{First: number*Size + 1, Last: (number + 1) * Size} }

// Contains reports whether the cell of the range gave the id.
func (r Range) Contains(id int64) bool { return r.First <= id && id <= r.Last }
