//go:build !linux

package stack

import "syscall"

// dieWithParent does nothing where the kernel offers no such signal: Stop ends all programs.
func dieWithParent(*syscall.SysProcAttr) {}
