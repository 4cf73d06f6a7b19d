//go:build !linux

package main

import (
	"fmt"
	"syscall"
)

// peakMemory returns the peak of the resident memory of this process in bytes, as macOS counts it.
func peakMemory() (uint64, error) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0, fmt.Errorf("read the peak of the memory: %w", err)
	}
	return uint64(usage.Maxrss), nil
}
