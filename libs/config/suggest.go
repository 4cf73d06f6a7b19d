package config

import (
	"iter"
	"strings"
)

// suggestKey returns the setting that was most likely meant, "" when none is near.
func (b *Binding) suggestKey(key string) string {
	if near := nearest(key, func(yield func(string) bool) {
		for _, f := range b.fields {
			if !yield(f.Key) || (f.group != "" && !yield(f.group)) {
				return
			}
		}
	}); near != "" {
		return near
	}
	// The right word in the wrong group.
	word := key[strings.LastIndex(key, ".")+1:]
	for _, f := range b.fields {
		if strings.HasSuffix(f.Key, "."+word) || f.Key == word {
			return f.Key
		}
	}
	return ""
}

// nearest returns the candidate with the fewest edits from word, "" when all need more than a third
// of the word.
func nearest(word string, candidates iter.Seq[string]) string {
	best, bestDistance := "", min(3, len(word)/3)+1
	for candidate := range candidates {
		if d := distance(word, candidate); d < bestDistance {
			best, bestDistance = candidate, d
		}
	}
	return best
}

// distance counts the insertions, removals, replacements and swaps of neighbours between a and b.
func distance(a, b string) int {
	rows := [3][]int{make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)}
	for j := range rows[1] {
		rows[1][j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, above, row := rows[0], rows[1], rows[2]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(above[j]+1, row[j-1]+1, above[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		rows = [3][]int{above, row, before}
	}
	return rows[1][len(b)]
}
