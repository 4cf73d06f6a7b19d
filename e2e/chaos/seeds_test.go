package chaos_test

import (
	_ "embed"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// seedVariable names the environment variable with the only seed to run.
const seedVariable = "LOCKSTEP_SEED"

//go:embed seeds.txt
var seedList string

// runSeeds runs a test with each of its seeds in seeds.txt, or with LOCKSTEP_SEED if it is set.
func runSeeds(t *testing.T, run func(t *testing.T, seed uint64)) {
	t.Helper()
	seeds := seedsOf(t, t.Name())
	if given := os.Getenv(seedVariable); given != "" {
		seeds = []string{given}
	}
	for _, text := range seeds {
		seed, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "a seed is a number of 64 bits")
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			t.Logf("repeat with: make chaos CHAOS_SEED=%d", seed)
			run(t, seed)
		})
	}
}

// seedsOf returns the seeds of a test. Every line has a reason.
func seedsOf(t *testing.T, test string) []string {
	t.Helper()
	var seeds []string
	for line := range strings.Lines(seedList) {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		require.Greater(t, len(fields), 2, "seeds.txt: %q has no reason", line)
		if fields[0] == test {
			seeds = append(seeds, fields[1])
		}
	}
	require.NotEmpty(t, seeds, "seeds.txt has no seed for %s", test)
	return seeds
}
