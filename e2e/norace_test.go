//go:build !race

package e2e_test

// lookForRaces is that this test was built to find data races.
const lookForRaces = false
