package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNamesAreListedAndUnknownOnesRefused(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"list"}, &out))
	for _, b := range benchmarks() {
		require.Contains(t, out.String(), b.name)
	}
	require.ErrorContains(t, run(t.Context(), []string{"run", "nothing"}, &out), "there are outbox")
	require.ErrorContains(t, run(t.Context(), nil, &out), "say `list`")
}

func TestMedian(t *testing.T) {
	t.Parallel()
	require.InDelta(t, 3, median([]float64{5, 1, 3}), 0)
}
