package lab

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"
)

// reportInterval is the interval of progress messages.
const reportInterval = 5 * time.Second

// tags disables Go plugins in kubectl: for them the linker would keep unused code, a third of the program.
const tags = "kustomize_disable_go_plugin_support"

// build is one run of go build.
type build struct {
	dir, output string
	progress    io.Writer
}

func (b build) run(ctx context.Context) error {
	began := time.Now()
	b.printf("building the Kubernetes control plane: 4 to 6 minutes the first time, seconds after that")
	b.printf("  fetching the modules that are not on this machine yet")
	total, err := b.count(ctx)
	if err != nil {
		return err
	}
	version, err := b.version(ctx)
	if err != nil {
		return err
	}
	ldflags := fmt.Sprintf(
		"-s -w -X k8s.io/component-base/version.gitVersion=%[1]s -X k8s.io/client-go/pkg/version.gitVersion=%[1]s",
		version,
	)
	arguments := []string{"build", "-v", "-tags=" + tags, "-ldflags=" + ldflags, "-o", b.output, "."}
	cmd := exec.CommandContext(ctx, "go", arguments...) //nolint:gosec // a path of the repository
	cmd.Dir, cmd.Env = b.dir, buildEnvironment()
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return fmt.Errorf("open a pipe from go build: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start go build: %w", err)
	}
	lines := make(chan string)
	go func() {
		defer close(lines)
		scanner := bufio.NewScanner(stderr)
		for scanner.Scan() {
			lines <- scanner.Text()
		}
	}()
	errorOutput := b.follow(lines, total, began)
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("build kubelab in %s: %w\n%s", b.dir, err, errorOutput)
	}
	b.printf("built the Kubernetes control plane in %s", time.Since(began).Round(time.Second))
	return nil
}

// follow counts the compiled packages and returns all other output of go build.
func (b build) follow(lines <-chan string, total int, began time.Time) *lastLines {
	errorOutput := &lastLines{}
	tick := time.NewTicker(reportInterval)
	defer tick.Stop()
	compiled := 0
	for {
		select {
		case line, open := <-lines:
			switch {
			case !open:
				return errorOutput
			case isPackage(line):
				compiled++
			default:
				_, _ = errorOutput.Write([]byte(line + "\n"))
			}
		case <-tick.C:
			b.printf("  %d of at most %d packages compiled, %s", compiled, total, time.Since(began).Round(time.Second))
		}
	}
}

// count returns the number of packages of the program. Listing them downloads the modules.
func (b build) count(ctx context.Context) (int, error) {
	var errorOutput lastLines
	cmd := exec.CommandContext(ctx, "go", "list", "-deps", ".")
	cmd.Dir, cmd.Env = b.dir, buildEnvironment()
	cmd.Stderr = &errorOutput
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("list kubelab's packages in %s: %w\n%s", b.dir, err, &errorOutput)
	}
	return bytes.Count(out, []byte("\n")), nil
}

// version returns the version of Kubernetes. Its own build writes it into the programs.
func (b build) version(ctx context.Context) (string, error) {
	var errorOutput lastLines
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-e", "-f", "{{.Version}}", "k8s.io/kubernetes")
	cmd.Dir, cmd.Env = b.dir, buildEnvironment()
	cmd.Stderr = &errorOutput
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("read the version of Kubernetes in %s: %w\n%s", b.dir, err, &errorOutput)
	}
	return strings.TrimSpace(string(out)), nil
}

func (b build) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(b.progress, format+"\n", args...)
}

// isPackage reports whether a line of go build -v is an import path, not an error or a download.
func isPackage(line string) bool {
	return line != "" && !strings.ContainsAny(line, " \t:")
}
