package ingest

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func FuzzWithoutNULDropsNULBytesOnly(f *testing.F) {
	f.Add("a\x00b\\u0000\\\x00")
	f.Fuzz(func(t *testing.T, text string) {
		data, err := json.Marshal(map[string]string{"t": text})
		require.NoError(t, err)
		var before, after map[string]string
		require.NoError(t, json.Unmarshal(data, &before))
		require.NoError(t, json.Unmarshal(withoutNUL(data), &after))
		require.Equal(t, strings.ReplaceAll(before["t"], "\x00", ""), after["t"])
	})
}
