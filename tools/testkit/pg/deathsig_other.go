//go:build !linux

package pg

import "syscall"

// dieWithParent does nothing where the kernel offers no such signal: the next Start removes
// orphans.
func dieWithParent(*syscall.SysProcAttr) {}
