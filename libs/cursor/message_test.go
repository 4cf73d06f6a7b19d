package cursor_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/cursor"
)

type reading struct {
	key     string
	version int
}

func batchOf(readings ...reading) []cursor.Message[reading] {
	batch := make([]cursor.Message[reading], len(readings))
	for i, r := range readings {
		batch[i] = cursor.Message[reading]{Sequence: uint64(i + 1), Value: r}
	}
	return batch
}

func TestLatestKeepsOnePerKey(t *testing.T) {
	t.Parallel()
	newer := func(a, b *cursor.Message[reading]) bool { return a.Value.version > b.Value.version }
	for name, test := range map[string]struct {
		batch []reading
		newer func(a, b *cursor.Message[reading]) bool
		want  []reading
	}{
		"empty":              {},
		"all differ":         {batch: []reading{{"a", 1}, {"b", 1}}, want: []reading{{"a", 1}, {"b", 1}}},
		"the last counts":    {batch: []reading{{"a", 9}, {"b", 1}, {"a", 2}}, want: []reading{{"b", 1}, {"a", 2}}},
		"the newest counts":  {batch: []reading{{"a", 9}, {"b", 1}, {"a", 2}}, newer: newer, want: []reading{{"a", 9}, {"b", 1}}},
		"of equals the last": {batch: []reading{{"a", 1}, {"a", 1}}, newer: newer, want: []reading{{"a", 1}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kept := cursor.Latest(
				batchOf(test.batch...), func(m *cursor.Message[reading]) string { return m.Value.key }, test.newer,
			)
			values := make([]reading, 0, len(kept))
			for _, m := range kept {
				values = append(values, m.Value)
			}
			require.ElementsMatch(t, test.want, values)
			require.Len(t, values, len(test.want))
			if name == "of equals the last" {
				require.Equal(t, uint64(2), kept[0].Sequence)
			}
		})
	}
}
