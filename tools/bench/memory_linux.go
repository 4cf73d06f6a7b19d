package main

import (
	"bytes"
	"fmt"
	"os"
)

// peakMemory returns the peak of the resident memory of this process in bytes. The peak that getrusage returns may be
// that of the parent: it survives exec.
func peakMemory() (uint64, error) {
	raw, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, fmt.Errorf("read the peak of the memory: %w", err)
	}
	var kilobytes uint64
	_, value, _ := bytes.Cut(raw, []byte("VmHWM:"))
	if _, err := fmt.Sscan(string(value), &kilobytes); err != nil {
		return 0, fmt.Errorf("read the peak of the memory: %w", err)
	}
	return kilobytes << 10, nil
}
