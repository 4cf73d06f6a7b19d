package stack

import "syscall"

// dieWithParent sets the parent-death signal. It applies to the OS thread that started the child; see StartProgram.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
