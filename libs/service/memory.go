package service

import (
	"math"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
)

// memoryShare is the part of the container's memory that Go may use before it collects garbage more often. The rest is
// for memory that Go does not manage.
const memoryShare = 0.9

// limitMemory sets Go's memory limit to a share of the container's, unless GOMEMLIMIT is set.
func limitMemory(fs string) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	if limit, found := containerMemory(fs); found {
		debug.SetMemoryLimit(int64(memoryShare * float64(limit)))
	}
}

// CollectGarbageAt sets how much the heap of this process grows, in percent, before garbage is collected, unless GOGC
// is set. Go's default is 100. More saves processor time, and costs memory up to the limit of [Main].
func CollectGarbageAt(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}

// containerMemory returns the smallest memory limit of the control groups of this process, in bytes. fs is the root of
// the file system. It returns false without a limit, such as on other systems than Linux.
func containerMemory(fs string) (limit int64, found bool) {
	raw, err := os.ReadFile(filepath.Join(fs, "proc/self/cgroup"))
	if err != nil {
		return 0, false
	}
	limit = math.MaxInt64
	for line := range strings.Lines(string(raw)) {
		_, group, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, group, _ := strings.Cut(group, ":")
		var file string
		switch controllers {
		case "": // version 2
			file = "sys/fs/cgroup/%/memory.max"
		case "memory": // version 1
			file = "sys/fs/cgroup/memory/%/memory.limit_in_bytes"
		default:
			continue
		}
		for {
			if own, ok := readLimit(filepath.Join(fs, strings.Replace(file, "%", group, 1))); ok {
				limit = min(limit, own)
			}
			if group == "/" || group == "." || group == "" {
				break
			}
			group = path.Dir(group)
		}
	}
	return limit, limit < noLimit
}

// noLimit is what version 1 of control groups has for no limit, or less.
const noLimit = 1 << 60

func readLimit(file string) (int64, bool) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	limit, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64) // "max" is no limit
	return limit, err == nil
}
