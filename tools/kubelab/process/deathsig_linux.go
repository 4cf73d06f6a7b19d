package process

import "syscall"

// dieWithParent ends a process when the thread that has started it ends.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
