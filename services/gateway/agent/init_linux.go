package agent

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// leftTimeout is how long the processes that are left have to end after SIGTERM. Then the container ends.
const leftTimeout = 3 * time.Second

// ReapAsInit does the duties of the first process of a container, if this is one: it starts the program again as its
// child, passes signals on, and collects the status of every process that has lost its parent. When the child has
// ended, the processes that people have left in the background get SIGTERM. It returns the exit status of the child. In
// any other process it returns false at once.
//
// Go's exec package waits for its own children, so one process cannot do both.
func ReapAsInit() (status int, isInit bool, err error) {
	if os.Getpid() != 1 {
		return 0, false, nil
	}
	executable, err := os.Executable()
	if err != nil {
		return 0, true, fmt.Errorf("start the agent: %w", err)
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals)
	child := exec.Command(executable, os.Args[1:]...) //nolint:gosec,noctx // the program itself, as long as the container
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := child.Start(); err != nil {
		return 0, true, fmt.Errorf("start the agent: %w", err)
	}
	go func() {
		for s := range signals {
			if s != syscall.SIGCHLD && s != syscall.SIGURG { // SIGURG is Go's own
				_ = child.Process.Signal(s) // it may have ended
			}
		}
	}()
	for {
		var wait syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &wait, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 0, true, fmt.Errorf("wait for the agent: %w", err)
		case pid == child.Process.Pid:
			endOthers()
			if wait.Signaled() {
				return statusSignal + int(wait.Signal()), true, nil
			}
			return wait.ExitStatus(), true, nil
		}
	}
}

// endOthers sends SIGTERM to all other processes, and waits until they have ended or leftTimeout is over.
func endOthers() {
	if syscall.Kill(-1, syscall.SIGTERM) != nil {
		return // there are none
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			if _, err := syscall.Wait4(-1, nil, 0, nil); err != nil && !errors.Is(err, syscall.EINTR) {
				return // nobody is left
			}
		}
	}()
	select {
	case <-ended:
	case <-time.After(leftTimeout):
	}
}
