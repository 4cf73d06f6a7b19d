package rollout_test

import (
	_ "embed"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Environment variables of `make histories`.
const (
	// countVariable is the number of histories of each kind. It defaults to [seeds].
	countVariable = "LOCKSTEP_HISTORIES"
	// firstVariable is the first of these seeds. It defaults to 0.
	firstVariable = "LOCKSTEP_FIRST_SEED"
	// seedVariable is the only seed to run.
	seedVariable = "LOCKSTEP_SEED"
)

// seeds is the number of histories of each kind that each test run simulates.
const seeds = 200

// isThorough reports whether the history of a seed is also checked for what costs more than its simulation.
func isThorough(seed uint64) bool { return seed%64 == 0 }

//go:embed testdata/seeds.txt
var seedList string

// runHistories checks simulated histories of each kind of workload: those of the first seeds, and those in seeds.txt.
func runHistories(t *testing.T, check func(t testing.TB, kind string, seed uint64)) {
	t.Helper()
	first, count := uint64(0), uint64(seeds)
	if given := os.Getenv(firstVariable); given != "" {
		first = seedOf(t, given)
	}
	if given := os.Getenv(countVariable); given != "" {
		count = seedOf(t, given)
	}
	for _, kind := range kinds() {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			run := func(seed uint64) {
				t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) { check(t, kind, seed) })
			}
			if given := os.Getenv(seedVariable); given != "" {
				run(seedOf(t, given))
				return
			}
			for seed := first; seed < first+count; seed++ {
				run(seed)
			}
			for _, seed := range listedSeeds(t, kind) {
				if seed < first || seed >= first+count {
					run(seed)
				}
			}
		})
	}
}

// listedSeeds returns the seeds of a test and kind in seeds.txt. Every line has a reason.
func listedSeeds(t *testing.T, kind string) []uint64 {
	t.Helper()
	test, _, _ := strings.Cut(t.Name(), "/")
	var listed []uint64
	for line := range strings.Lines(seedList) {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		require.Greater(t, len(fields), 3, "seeds.txt: %q has no reason", line)
		if fields[0] == test && fields[1] == kind {
			listed = append(listed, seedOf(t, fields[2]))
		}
	}
	return listed
}

func seedOf(t *testing.T, text string) uint64 {
	t.Helper()
	seed, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err, "a seed is a number of 64 bits")
	return seed
}
