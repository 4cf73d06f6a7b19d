package service

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMemoryOfTheContainer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"no control groups": {},
		"a container": {
			map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "536870912\n"}, 536870912,
		},
		"no limit": {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 0},
		"a service of systemd, in a limited slice": {map[string]string{
			"proc/self/cgroup":                                       "0::/system.slice/lockstep.service\n",
			"sys/fs/cgroup/system.slice/memory.max":                  "1000000\n",
			"sys/fs/cgroup/system.slice/lockstep.service/memory.max": "max\n",
		}, 1000000},
		"version 1": {map[string]string{
			"proc/self/cgroup":                                  "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":        "2000000\n",
			"sys/fs/cgroup/memory/docker/memory.limit_in_bytes": "9223372036854771712\n",
		}, 2000000},
		"version 1 without a limit": {map[string]string{
			"proc/self/cgroup": "4:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limit, found := containerMemory(fileSystem(t, c.files))
			require.Equal(t, c.want > 0, found)
			if found {
				require.Equal(t, c.want, limit)
			}
		})
	}
}

func fileSystem(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		file := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	}
	return root
}

func TestMemoryLimitIsThatOfTheContainerUnlessSet(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	root := fileSystem(t, map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "10000000000\n"})
	t.Setenv("GOMEMLIMIT", "8GiB") // Go reads it before main
	limitMemory(root)
	require.Equal(t, before, debug.SetMemoryLimit(-1))
	t.Setenv("GOMEMLIMIT", "")
	limitMemory(root)
	require.Equal(t, int64(9000000000), debug.SetMemoryLimit(-1))
}

func TestGarbageIsCollectedAtThePercentageUnlessSet(t *testing.T) {
	before := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	t.Setenv("GOGC", "100") // Go reads it before main
	CollectGarbageAt(400)
	require.Equal(t, 100, debug.SetGCPercent(100))
	t.Setenv("GOGC", "")
	CollectGarbageAt(400)
	require.Equal(t, 400, debug.SetGCPercent(100))
}
