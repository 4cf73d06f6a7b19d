package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	// CA certificates for images without any, such as those made from scratch.
	_ "golang.org/x/crypto/x509roots/fallback"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/fault"
)

// Main runs a program. It loads the configuration from file, environment and flags,
// answers --help and similar flags, runs main, and exits with the status of its error. SIGTERM or
// SIGINT cancels the context of main; a second signal ends the process at once. The memory limit of Go is nine tenths
// of the container's, unless GOMEMLIMIT is set.
//
//	func main() { service.Main(state.Program(), state.DefaultConfig(), state.Main) }
func Main[C any](program config.Program, defaults C, main func(context.Context, C) error) {
	limitMemory("/")
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	os.Exit(Execute(Process{
		Args: os.Args[1:], Environ: os.Environ(), Stdout: os.Stdout, Stderr: os.Stderr, Signals: signals, Exit: os.Exit,
	}, program, defaults, main))
}

// Process is the environment of Execute.
type Process struct {
	Args    []string // without the program name
	Environ []string
	Stdout  io.Writer
	Stderr  io.Writer
	Signals <-chan os.Signal
	Exit    func(status int) // ends the process at once, on the second signal
	// ReadyTimeout bounds the request of --check-ready. Defaults to 5 s.
	ReadyTimeout time.Duration
}

// Execute is Main with an explicit process. It returns the exit status: 0 for success and for printed output, 2 for
// an invalid configuration, else the status of package fault. --check-ready asks the instance that runs with the
// same configuration whether it is ready: 0 if so, 1 if not.
func Execute[C any](process Process, program config.Program, defaults C, main func(context.Context, C) error) int {
	if program.Version == "" {
		program.Version = Version()
	}
	cfg, checkReady := defaults, false
	program.Switches = append(slices.Clone(program.Switches), config.Switch{
		Flag: "check-ready",
		On:   &checkReady,
		Help: "check whether the instance with the same configuration on this machine is ready, " +
			"and exit with status 0 if so; for health checks of containers",
	})
	warnings, err := config.Load(
		&cfg, program, config.Input{Args: process.Args, Environ: process.Environ, Stdout: process.Stdout},
	)
	report := func(format string, args ...any) {
		_, _ = fmt.Fprintf(
			process.Stderr,
			program.Name+": "+format+"\n",
			args...) // fails only without stderr
	}
	for _, warning := range warnings {
		report("warning: %s", warning)
	}
	if errors.Is(err, config.ErrPrinted) {
		return 0
	}
	if err != nil {
		report("%v\n%s --help lists every setting", err, program.Name)
		return fault.ExitCode(err)
	}
	if checkReady {
		return answerReady(process, cfg)
	}

	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	done := make(chan struct{})
	defer close(done)
	go handleSignals(process, cancel, done)
	if err := main(ctx, cfg); err != nil && (ctx.Err() == nil || !errors.Is(err, context.Canceled)) {
		report("%v", err)
		return fault.ExitCode(err)
	}
	return 0
}

// handleSignals cancels the context at the first signal and exits at the second.
func handleSignals(process Process, cancel context.CancelCauseFunc, done <-chan struct{}) {
	select {
	case s := <-process.Signals:
		cancel(fmt.Errorf("signal: %s", s)) //nolint:err113 // a cause for the log
	case <-done:
		return
	}
	select {
	case s := <-process.Signals:
		status := 1
		if number, ok := s.(syscall.Signal); ok {
			status = 128 + int(number)
		}
		process.Exit(status)
	case <-done:
	}
}

// version is set when a release is linked (-X lockstep.internal/libs/service.version=v1.2.3).
var version string //nolint:gochecknoglobals // only the linker writes it

// Version returns the version set by the linker, or else the module version from the build info.
func Version() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(devel)"
	}
	return info.Main.Version
}

// Commit returns the VCS revision of the build, or an empty string if the build does not have one.
func Commit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	return commitOf(info)
}

func commitOf(info *debug.BuildInfo) string {
	i := slices.IndexFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "vcs.revision" })
	if i < 0 {
		return ""
	}
	return info.Settings[i].Value
}
