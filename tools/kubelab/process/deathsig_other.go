//go:build !linux

package process

import "syscall"

// dieWithParent does nothing: the system has no such signal.
func dieWithParent(*syscall.SysProcAttr) {}
