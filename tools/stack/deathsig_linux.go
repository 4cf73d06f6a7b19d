package stack

import "syscall"

// dieWithParent makes the kernel end a program when the thread that started it ends; see
// program.begin for why that thread is kept.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
