package pg

import "syscall"

// dieWithParent makes the kernel ask the server for a fast shutdown when the thread that started it
// ends; see process.run for why that thread is kept.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGINT }
