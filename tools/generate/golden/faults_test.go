package golden_test

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"lockstep.internal/tools/generate/document"
	"lockstep.internal/tools/generate/golden"
)

func TestFaultsReportsEveryFault(t *testing.T) {
	t.Parallel()
	schemas, err := document.New(map[string][]byte{
		"observed.tick.v1.schema.json": []byte(
			`{"type":"object","required":["at"],"properties":{"at":{"type":"string","format":"date-time"}}}`),
	})
	require.NoError(t, err)
	const head = `{"specversion":"1.0","id":"1","source":"/s","type":"dev.lockstep.observed.tick.v1","data":`
	for data, want := range map[string][]string{
		head + `{"at":"2026-01-02T03:04:05Z"}}`: nil,
		head + `{"at":"late"}}`:                 {"v1/observed.tick.v1.json: /data/at: 'late' is not valid date-time"},
		head + `{}}`:                            {"v1/observed.tick.v1.json: /data/: missing property 'at'"},
		`{}`:                                    {"v1/observed.tick.v1.json: structured event:"},
		`{"specversion":"1.0","id":"1","source":"/s","type":"dev.lockstep.observed.tick.v2","data":{}}`: {
			"v1/observed.tick.v1.json: is of type dev.lockstep.observed.tick.v2",
		},
	} {
		sentences, err := golden.Faults(schemas, fstest.MapFS{"v1/observed.tick.v1.json": {Data: []byte(data)}})
		require.NoError(t, err)
		require.Len(t, sentences, len(want), data)
		for i := range want {
			require.Contains(t, sentences[i], want[i])
		}
	}
	const gone = `{"specversion":"1.0","id":"1","source":"/s","type":"dev.lockstep.observed.gone.v1","data":{}}`
	sentences, err := golden.Faults(schemas, fstest.MapFS{"v1/observed.gone.v1.json": {Data: []byte(gone)}})
	require.NoError(t, err)
	require.Len(t, sentences, 1)
	require.Contains(t, sentences[0], "there is no schema of its type")
}
