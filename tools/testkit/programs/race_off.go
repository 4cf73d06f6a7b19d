//go:build !race

package programs

// raceEnabled reports whether this program detects data races.
const raceEnabled = false
