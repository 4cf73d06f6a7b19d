package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// peakMemory is the most memory that this process has held, in bytes.
func peakMemory() (uint64, error) {
	const field = "VmHWM:"
	raw, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, fmt.Errorf("look at this process: %w", err)
	}
	for line := range strings.Lines(string(raw)) {
		if value, found := strings.CutPrefix(line, field); found {
			kilobytes, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("read the peak of this process's memory: %w", err)
			}
			return kilobytes << 10, nil
		}
	}
	return 0, fmt.Errorf("%s is not in /proc/self/status", field)
}
