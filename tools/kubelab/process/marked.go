package process

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// markVariable is in the environment of every process of a pod, with the pod's folder. Processes inherit it, so those
// that have left their process group are found, too.
const markVariable = "KUBELAB_POD"

// killMarked kills the processes whose pod has its folder in a folder, until there are none.
func killMarked(folder string) {
	for killed := true; killed; {
		killed = false
		for _, pid := range marked(folder) {
			// It fails for a process that has ended meanwhile.
			killed = syscall.Kill(pid, syscall.SIGKILL) == nil || killed
		}
	}
}

// marked returns the processes that are not over.
func marked(folder string) []int {
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return nil // the pattern is valid
	}
	mark := []byte(markVariable + "=" + folder)
	var pids []int
	for _, file := range files {
		environ, err := os.ReadFile(file) // that of a zombie is empty
		if err != nil {
			continue // of another user, or over
		}
		for variable := range bytes.SplitSeq(environ, []byte{0}) {
			rest, found := bytes.CutPrefix(variable, mark)
			if !found || (len(rest) > 0 && rest[0] != filepath.Separator) {
				continue
			}
			if pid, err := strconv.Atoi(strings.Split(file, "/")[2]); err == nil && pid != os.Getpid() {
				pids = append(pids, pid)
			}
			break
		}
	}
	return pids
}
