//go:build !linux

package main

import (
	"fmt"
	"syscall"
)

// peakMemory is the most memory that this process has held, in bytes: what it says of itself where
// there is no /proc.
func peakMemory() (uint64, error) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0, fmt.Errorf("look at this process: %w", err)
	}
	return uint64(usage.Maxrss), nil
}
