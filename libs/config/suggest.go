package config

import "strings"

// didYouMean ends a sentence about an unknown name.
func didYouMean(suggestion string) string {
	if suggestion == "" {
		return ""
	}
	return "; did you mean " + suggestion + "?"
}

// suggestKey returns the key nearest to an unknown one, or the same word in another group; "" when
// there is none.
func (b *Binding) suggestKey(key string) string {
	var keys []string
	for _, f := range b.fields {
		keys = append(keys, f.Key, f.group)
	}
	if near := nearest(key, keys); near != "" {
		return near
	}
	word := key[strings.LastIndex(key, ".")+1:]
	for _, f := range b.fields {
		if strings.HasSuffix("."+f.Key, "."+word) {
			return f.Key
		}
	}
	return ""
}

// nearest returns the candidate with the fewest edits from word, "" when all need more than a third
// of the word.
func nearest(word string, candidates []string) string {
	best, bestDistance := "", min(3, len(word)/3)+1
	for _, candidate := range candidates {
		if d := distance(word, candidate); d < bestDistance {
			best, bestDistance = candidate, d
		}
	}
	return best
}

// distance is the Damerau-Levenshtein distance with adjacent transpositions.
func distance(a, b string) int {
	before, above := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range above {
		above[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
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
		before, above = above, row
	}
	return above[len(b)]
}
