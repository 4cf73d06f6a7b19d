package cursor_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/cursor"
)

type versioned struct {
	key     string
	version int
}

func batchOf(readings ...versioned) []cursor.Message[versioned] {
	batch := make([]cursor.Message[versioned], len(readings))
	for i, r := range readings {
		batch[i] = cursor.Message[versioned]{Sequence: uint64(i + 1), Value: r}
	}
	return batch
}

func TestLatestKeepsOnePerKey(t *testing.T) {
	t.Parallel()
	newer := func(a, b *cursor.Message[versioned]) bool { return a.Value.version > b.Value.version }
	for name, test := range map[string]struct {
		batch []versioned
		newer func(a, b *cursor.Message[versioned]) bool
		want  []versioned
	}{
		"empty":           {},
		"all differ":      {batch: []versioned{{"a", 1}, {"b", 1}}, want: []versioned{{"a", 1}, {"b", 1}}},
		"the last counts": {batch: []versioned{{"a", 9}, {"b", 1}, {"a", 2}}, want: []versioned{{"b", 1}, {"a", 2}}},
		"the newest counts": {
			batch: []versioned{{"a", 9}, {"b", 1}, {"a", 2}},
			newer: newer,
			want:  []versioned{{"a", 9}, {"b", 1}},
		},
		"the last of equal versions": {batch: []versioned{{"a", 1}, {"a", 1}}, newer: newer, want: []versioned{{"a", 1}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kept := cursor.Latest(
				batchOf(test.batch...), func(m *cursor.Message[versioned]) string { return m.Value.key }, test.newer,
			)
			values := make([]versioned, 0, len(kept))
			for _, m := range kept {
				values = append(values, m.Value)
			}
			require.ElementsMatch(t, test.want, values)
			require.Len(t, values, len(test.want))
			if name == "the last of equal versions" {
				require.Equal(t, uint64(2), kept[0].Sequence)
			}
		})
	}
}
