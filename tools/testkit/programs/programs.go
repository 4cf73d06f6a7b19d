// Package programs builds Lockstep's programs from this source tree, for tests and benchmarks that run them as
// processes.
package programs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// Services returns the folder of the services' programs. They detect data races if this program does.
func Services(ctx context.Context) (string, error) {
	if raceEnabled {
		return Build(ctx, "race", append([]string{"-race"}, servicePackages()...)...)
	}
	return ReleaseServices(ctx)
}

// ReleaseServices returns the folder of the services' programs as they are shipped, without the race detector.
func ReleaseServices(ctx context.Context) (string, error) {
	return Build(ctx, "release", servicePackages()...)
}

func servicePackages() []string {
	const services = "lockstep.internal/services/"
	packages := []string{services + "relay/cmd/relay-agent", services + "gateway/cmd/workspace-agent"}
	for _, name := range []string{
		"state", "watcher", "dispatcher", "deploys", "relay", "runners", "router", "admission", "gateway",
	} {
		packages = append(packages, services+name+"/cmd/"+name)
	}
	return packages
}

// Build compiles programs into a folder below bin/e2e, which all processes share, and returns the folder. `go build`
// leaves a program alone that is up to date, and a lock keeps two processes from building at once.
func Build(ctx context.Context, folder string, arguments ...string) (string, error) {
	// Tests of modules outside of the workspace run with GOWORK=off. The programs are of the workspace.
	environment := append(os.Environ(), "GOWORK=")
	find := exec.CommandContext(ctx, "go", "env", "GOWORK")
	find.Env = environment
	workspace, err := find.Output()
	if err != nil {
		return "", fmt.Errorf("find the source tree: %w", err)
	}
	dir := filepath.Join(filepath.Dir(string(workspace)), "bin", "e2e", folder)
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // programs are for everybody
		return "", fmt.Errorf("build programs: %w", err)
	}
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", fmt.Errorf("build programs: %w", err)
	}
	defer lock.Close() //nolint:errcheck // releases the lock
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("build programs: %w", err)
	}
	arguments = append([]string{"build", "-o", dir + "/"}, arguments...)
	compile := exec.CommandContext(ctx, "go", arguments...) //nolint:gosec // packages of this tree
	compile.Dir, compile.Env = filepath.Dir(string(workspace)), environment
	if output, err := compile.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build programs: %w\n%s", err, output)
	}
	return dir, nil
}
