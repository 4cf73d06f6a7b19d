package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"lockstep.internal/tools/testkit/programs"
)

func main() {
	if raw := os.Getenv(natsVariable); raw != "" {
		exit(serveNATS(raw))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := command(ctx, os.Args[1:], os.Stdout)
	if errors.Is(err, flag.ErrHelp) {
		err = nil
	}
	exit(err)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// command parses the flags and runs or judges.
func command(ctx context.Context, arguments []string, out io.Writer) error {
	var opts Options
	var recorded string
	flags := flag.NewFlagSet("chaos", flag.ContinueOnError)
	flags.Uint64Var(&opts.Seed, "seed", 0, "seed of the faults and changes; 0 = a fresh one")
	flags.DurationVar(&opts.Duration, "duration", 12*time.Minute, "length of the load")
	flags.StringVar(&opts.Dir, "dir", "", "folder for the recording, logs and data; default: a new one in the folder for "+
		"temporary files")
	flags.StringVar(&opts.Programs, "programs", "", "folder of the services' programs; default: they are built")
	flags.StringVar(&recorded, "judge", "", "judge the recording in this folder again, and run nothing")
	if err := flags.Parse(arguments); err != nil {
		return err //nolint:wrapcheck // it was printed
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%q is no flag", flags.Arg(0))
	}
	if recorded != "" {
		return judgeFile(filepath.Join(recorded, recordingFile), out)
	}
	if err := opts.complete(ctx); err != nil {
		return err
	}
	opts.Out = out
	const header = "chaos: seed %d, recording in %s\nrepeat with: go run ./tools/chaos --seed %d --duration %s\n"
	if _, err := fmt.Fprintf(out, header, opts.Seed, opts.Dir, opts.Seed, opts.Duration); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if err := RunLoad(ctx, opts); err != nil {
		return err
	}
	return judgeFile(filepath.Join(opts.Dir, recordingFile), out)
}

// complete sets the defaults.
func (o *Options) complete(ctx context.Context) error {
	var err error
	if o.Seed == 0 {
		var fresh [8]byte
		_, _ = rand.Read(fresh[:]) // it never fails
		o.Seed = binary.LittleEndian.Uint64(fresh[:])
	}
	if o.Dir == "" {
		if o.Dir, err = os.MkdirTemp("", "lockstep-chaos-"); err != nil {
			return fmt.Errorf("create a folder: %w", err)
		}
	}
	// If this process is root, PostgreSQL runs as another user, who must be able to enter the folder.
	if err := errors.Join(os.MkdirAll(o.Dir, 0o711), os.Chmod(o.Dir, 0o711)); err != nil { //nolint:gosec // see above
		return fmt.Errorf("create a folder: %w", err)
	}
	if o.Programs == "" {
		o.Programs, err = programs.Services(ctx)
	}
	return err
}

// judgeFile prints what a recording shows.
func judgeFile(path string, out io.Writer) error {
	recording, err := ReadRecording(path)
	if err != nil {
		return err
	}
	found := Judge(recording)
	for _, finding := range found {
		if _, err := fmt.Fprintln(out, finding); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	}
	if _, err := fmt.Fprintf(out, "%s\n%d findings\n", Summary(recording), len(found)); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if len(found) > 0 {
		return fmt.Errorf("%w: judge the recording again with --judge %s", errFaults, filepath.Dir(path))
	}
	return nil
}
