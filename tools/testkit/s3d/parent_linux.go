package s3d

import (
	"os/exec"
	"syscall"
)

// dieWithParent makes the kernel kill the server when the thread that started it ends.
func dieWithParent(command *exec.Cmd) {
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
