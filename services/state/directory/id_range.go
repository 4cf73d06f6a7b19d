package directory

// idsPerCell is the size of the range of ids of a cell: 2^40.
const idsPerCell = int64(1) << 40

// IDRange is the ids that one cell gives to entities. No other cell gives them, so a move keeps ids.
type IDRange struct{ First, Last int64 }

// CellIDs returns the range of the cell with a number.
func CellIDs(number int64) IDRange {
	return IDRange{First: number*idsPerCell + 1, Last: (number + 1) * idsPerCell}
}

// Contains reports whether the cell of the range gave the id.
func (r IDRange) Contains(id int64) bool { return r.First <= id && id <= r.Last }
