package cellmap_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/cellmap"
	"lockstep.internal/libs/topology"
)

// moves returns the function of a map for organization 7.
func moves(known map[topology.Cell]cellmap.Move) func(topology.Cell, int64) (cellmap.Move, bool) {
	return func(from topology.Cell, organization int64) (cellmap.Move, bool) {
		m, found := known[from]
		return m, found && organization == 7
	}
}

func TestMovesAreFollowedWhileTheyGetLater(t *testing.T) {
	t.Parallel()
	chain := map[topology.Cell]cellmap.Move{}
	for i, name := range []topology.Cell{"a", "b", "c", "d", "e", "f", "g", "h", "i"} {
		chain[name] = cellmap.Move{To: name[:0] + topology.Cell(rune('b'+i)), Number: int64(i + 1)}
	}
	type known = map[topology.Cell]cellmap.Move
	for name, test := range map[string]struct {
		moves      known
		from, want topology.Cell
	}{
		"none":               {nil, "a", "a"},
		"one":                {known{"a": {To: "b", Number: 1}}, "a", "b"},
		"of another cell":    {known{"a": {To: "b", Number: 1}}, "c", "c"},
		"there and back":     {known{"a": {To: "b", Number: 1}, "b": {To: "a", Number: 2}}, "a", "a"},
		"back, from there":   {known{"a": {To: "b", Number: 1}, "b": {To: "a", Number: 2}}, "b", "a"},
		"there once more":    {known{"a": {To: "b", Number: 3}, "b": {To: "a", Number: 2}}, "b", "b"},
		"a circle":           {known{"a": {To: "a", Number: 1}}, "a", "a"},
		"an older one after": {known{"a": {To: "b", Number: 5}, "b": {To: "c", Number: 4}}, "a", "b"},
		"too many":           {chain, "a", "i"},
	} {
		require.Equal(t, test.want, cellmap.Follow(moves(test.moves), test.from, 7), name)
		require.Equal(t, test.from, cellmap.Follow(moves(test.moves), test.from, 8), name)
	}
}

// FuzzFollow tries any moves between four cells: an organization ends in a cell that each cell on its way named, and no
// cell decides about requests that do not reach it.
func FuzzFollow(f *testing.F) {
	f.Add([]byte{0, 1, 1, 1, 0, 2})
	f.Add([]byte{0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 0, 4})
	f.Fuzz(func(t *testing.T, data []byte) {
		names := []topology.Cell{"a", "b", "c", "d"}
		known := map[topology.Cell]cellmap.Move{}
		for ; len(data) >= 3; data = data[3:] {
			known[names[data[0]%4]] = cellmap.Move{To: names[data[1]%4], Number: int64(data[2])}
		}
		visited := map[topology.Cell]bool{}
		lookup := func(from topology.Cell, organization int64) (cellmap.Move, bool) {
			visited[from] = true
			return moves(known)(from, organization)
		}
		end := cellmap.Follow(lookup, "a", 7)
		for _, other := range names {
			if !visited[other] {
				delete(known, other)
			}
		}
		require.Equal(t, end, cellmap.Follow(moves(known), "a", 7), "cells that were not reached decide nothing")
	})
}

func TestMovesAreEntries(t *testing.T) {
	t.Parallel()
	m := cellmap.NewEmpty(logger(t))
	apply(t, m, "moved.one.7", `{"generation":1,"cell":"two","number":3}`)
	found, known := m.Moved("one", 7)
	require.True(t, known)
	require.Equal(t, cellmap.Move{From: "one", Organization: 7, To: "two", Number: 3}, found)
	require.False(t, m.HasCells())
	require.Empty(t, m.Cells())
	require.Empty(t, m.Organizations())
	apply(t, m, "moved.one.7", `{"generation":2,"deleted":true}`)
	_, known = m.Moved("one", 7)
	require.False(t, known)
	for subject, content := range map[string]string{
		"moved.one.7": `{"generation":3,"cell":"two"}`, "moved.one": `{"generation":3,"cell":"two","number":1}`,
		"moved.one.x": `{"generation":3,"cell":"two","number":1}`, "moved.one.07": `{"generation":3,"cell":"two","number":1}`,
		"moved.one.8": `{"generation":3,"cell":"Two","number":1}`,
	} {
		require.ErrorIs(t, m.Apply("$KV.CELLS."+subject, []byte(content)), cellmap.ErrInvalidEntry, subject)
	}
}
